from engine.sampling.text import IncrementalText

PIECES = {
    0: "héllo".encode(),
    1: "🙂".encode()[:2],
    2: "🙂".encode()[2:],
    3: b"\xff",
    4: b"x\xc3",
    5: b"\xa9y",
}


def test_a_character_comes_out_when_its_last_byte_is_in() -> None:
    text = IncrementalText(PIECES.__getitem__)
    assert [text.push(token) for token in (0, 1, 2, 4, 5)] == ["héllo", "", "🙂", "x", "éy"]
    assert text.finish() == ""


def test_bytes_that_are_no_text_are_replaced_and_do_not_stop_the_rest() -> None:
    text = IncrementalText(PIECES.__getitem__)
    assert [text.push(token) for token in (3, 0)] == ["\N{REPLACEMENT CHARACTER}", "héllo"]


def test_an_incomplete_character_at_the_end_is_replaced() -> None:
    text = IncrementalText(PIECES.__getitem__)
    assert text.push(1) == ""
    assert text.finish() == "\N{REPLACEMENT CHARACTER}"
