def savings_line(t):
    return "x"
