"""What agents cost, from the transcripts that their hosts keep, and what the proxy would have saved. Writes nothing."""
