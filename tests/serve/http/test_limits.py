"""Rate limits for each owner, and the allowed values of Host and Origin."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextfold.errors import SettingsError
from contextfold.serve.http.guard import Buckets, HostRule


def test_a_clock_that_goes_back_allows_no_extra_calls() -> None:
    buckets = Buckets(1, 1)
    assert buckets.take("a", 10.0) == 0
    assert buckets.take("a", 5.0) == 1
    assert buckets.take("a", 10.5) == 0.5


def test_the_least_recently_used_bucket_is_dropped_first() -> None:
    buckets = Buckets(1, 1, owners_max=2)
    for owner in ("a", "b", "a", "c"):
        buckets.take(owner, 0.0)
    assert buckets.take("a", 0.0) > 0
    assert buckets.take("b", 0.0) == 0


@given(st.lists(st.floats(0, 5), min_size=1, max_size=60), st.floats(0.1, 20), st.integers(1, 10))
def test_no_more_calls_pass_than_the_burst_and_the_rate_allow(gaps: list[float], rate: float, burst: int) -> None:
    buckets, now_s, passed = Buckets(rate, burst), 0.0, 0
    for gap in gaps:
        now_s += gap
        wait_s = buckets.take("a", now_s)
        passed += wait_s == 0
        assert 0 <= wait_s <= 1 / rate + 1e-9
        assert passed <= burst + rate * (now_s - gaps[0]) + 1e-6


@pytest.mark.parametrize("value", ["localhost", "LocalHost:9090", "127.0.0.1", "127.0.0.1:1", "[::1]", "[0:0::1]:80"])
def test_names_of_this_machine_are_allowed_hosts_on_any_port(value: str) -> None:
    assert HostRule("127.0.0.1").host_of(value)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "evil.example",
        "localhost.evil.example",
        "localhost.",
        "user@localhost",
        "127.0.0.1.evil.example",
        "2130706433",
        "0x7f.0.0.1",
        "192.0.2.1",
        "[::2]",
        "localhost,evil.example",
        "a" * 300,
        "löcalhost",
    ],
)
def test_other_hosts_are_not_allowed(value: str) -> None:
    assert HostRule("127.0.0.1").host_of(value) is None


def test_configured_hosts_are_allowed() -> None:
    rule = HostRule("0.0.0.0", ["Ctx.example.org", "2001:db8::1"])
    assert rule.host_of("ctx.EXAMPLE.org:443") == "ctx.example.org"
    assert rule.host_of("[2001:DB8:0::1]") == "[2001:db8::1]"
    assert rule.host_of("other.example.org") is None


def test_on_a_public_address_any_ip_is_an_allowed_host_but_no_name() -> None:
    rule = HostRule("0.0.0.0")
    assert rule.host_of("192.0.2.7:9090") == "192.0.2.7"
    assert rule.host_of("[2001:db8::7]") == "[2001:db8::7]"
    assert rule.host_of("evil.example") is None
    assert HostRule("127.0.0.1").host_of("192.0.2.7") is None


@pytest.mark.parametrize("name", ["", "https://example.org", "a b", "*.example.org", "[::z]"])
def test_an_invalid_configured_host_is_an_error(name: str) -> None:
    with pytest.raises(SettingsError, match="is no host's name"):
        HostRule("127.0.0.1", [name])


@pytest.mark.parametrize("value", ["http://localhost", "https://LOCALHOST:3000", "http://127.0.0.1", "http://[::1]:5"])
def test_origins_of_this_machine_are_allowed(value: str) -> None:
    assert HostRule("127.0.0.1").is_origin(value, "localhost")


@pytest.mark.parametrize(
    "value",
    [
        "null",
        "",
        "https://evil.example",
        "http://localhost.evil.example",
        "http://localhost@evil.example",
        "http://evil.example#localhost",
        "chrome-extension://localhost",
        "http://localhost http://evil.example",
    ],
)
def test_other_origins_are_not_allowed(value: str) -> None:
    assert not HostRule("127.0.0.1").is_origin(value, "localhost")


def test_an_origin_with_an_ip_may_call_only_that_ip() -> None:
    rule = HostRule("0.0.0.0")
    assert rule.is_origin("http://192.0.2.7:9090", "192.0.2.7")
    assert not rule.is_origin("http://198.51.100.1", "192.0.2.7")
