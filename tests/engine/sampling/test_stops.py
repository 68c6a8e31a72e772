import pytest

from engine.errors import SettingsError
from engine.request import Request
from engine.sampling.stops import Emitted, StopCause, StopHit, StopRules, StopWatch, stop_rules

PIECES = [b"Hel", b"lo ST", b"OP here", b"\xf0\x9f", b"\x99\x82", b"a", b"ab", b"END", b"c"]
EOS = 99


def watch(*strings: str, stop_tokens: frozenset[int] = frozenset()) -> StopWatch:
    return StopWatch(StopRules(frozenset({EOS}), stop_tokens, strings), PIECES.__getitem__)


def test_a_stop_string_that_spans_tokens_is_cut_and_never_shown() -> None:
    watching = watch("STOP")
    assert watching.push(0) == Emitted("Hel")
    assert watching.push(1) == Emitted("lo ")
    assert watching.push(2) == Emitted("", StopHit(StopCause.STOP_STRING, "STOP", 6))


def test_text_that_only_began_like_a_stop_string_is_shown_later() -> None:
    watching = watch("STONE")
    assert [watching.push(token).text for token in (0, 1, 2)] == ["Hel", "lo ", "STOP here"]


def test_text_held_back_is_shown_when_the_output_ends_for_another_reason() -> None:
    watching = watch("STOP")
    watching.push(0)
    watching.push(1)
    assert watching.finish() == Emitted("ST")


def test_a_stop_string_may_hold_a_character_that_spans_tokens() -> None:
    watching = watch("🙂")
    assert watching.push(5) == Emitted("a")
    assert watching.push(3) == Emitted("")
    assert watching.push(4) == Emitted("", StopHit(StopCause.STOP_STRING, "🙂", 1))


def test_the_string_that_is_complete_first_wins_whatever_the_order_of_the_list() -> None:
    for strings in (("lo STOP", "ell"), ("ell", "lo STOP")):
        watching = watch(*strings)
        watching.push(0)
        assert watching.push(1).hit == StopHit(StopCause.STOP_STRING, "ell", 1)


def test_of_strings_complete_at_the_same_character_the_longer_one_cuts() -> None:
    watching = watch("OP", "STOP")
    watching.push(1)
    assert watching.push(2) == Emitted("", StopHit(StopCause.STOP_STRING, "STOP", 3))


def test_a_stop_string_is_found_after_a_false_start_that_overlaps_it() -> None:
    watching = watch("aab")
    assert watching.push(5) == Emitted("")
    assert watching.push(5) == Emitted("")
    assert watching.push(6) == Emitted("a", StopHit(StopCause.STOP_STRING, "aab", 1))


def test_an_end_token_adds_no_text_and_releases_what_was_held() -> None:
    watching = watch("STOP")
    watching.push(1)
    assert watching.push(EOS) == Emitted("ST", StopHit(StopCause.END_OF_SEQUENCE, "99", 5))


def test_a_stop_token_adds_no_text() -> None:
    watching = watch(stop_tokens=frozenset({7}))
    watching.push(5)
    assert watching.push(7) == Emitted("", StopHit(StopCause.STOP_TOKEN, "7", 1))


def test_rules_follow_the_request() -> None:
    request = Request("r", (1,), 5, stop_token_ids=(3,), stop_strings=("x",))
    assert stop_rules(request, [EOS]) == StopRules(frozenset({EOS}), frozenset({3}), ("x",))
    ignoring = Request("r", (1,), 5, ignore_eos=True)
    assert stop_rules(ignoring, [EOS]) == StopRules()


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(SettingsError, match="request 'r': a stop string is empty"):
        stop_rules(Request("r", (1,), 5, stop_strings=("x", "")), [])
