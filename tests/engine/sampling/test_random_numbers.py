import numpy as np

from engine.sampling.random_numbers import Stream, uniform

MASK = (1 << 64) - 1


def philox_word(counter: list[int], key: list[int]) -> int:
    """First word of Philox-4x64-10 as the paper defines it, on Python integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        high, low = divmod(0xD2E7470EE14C6C93 * c[0], 1 << 64)
        other_high, other_low = divmod(0xCA5A826395121157 * c[2], 1 << 64)
        c = [other_high ^ c[1] ^ k[0], other_low, high ^ c[3] ^ k[1], low]
        k = [(k[0] + 0x9E3779B97F4A7C15) & MASK, (k[1] + 0xBB67AE8584CAA73B) & MASK]
    return c[0]


def test_the_generator_is_philox() -> None:
    # numpy raises the counter by one before each block
    generator = np.random.Philox(key=np.array([1, 2], np.uint64), counter=np.array([3, 4, 0, 0], np.uint64))
    assert int(generator.random_raw()) == philox_word([4, 4, 0, 0], [1, 2])


def test_a_number_does_not_depend_on_what_was_drawn_before() -> None:
    places = [(request, position) for request in "abc" for position in range(20)]
    forward = {place: uniform(7, *place) for place in places}
    backward = {place: uniform(7, *place) for place in reversed(places)}
    assert forward == backward


def test_seed_request_position_and_stream_each_change_the_number() -> None:
    numbers = {
        uniform(1, "a", 5),
        uniform(2, "a", 5),
        uniform(1, "b", 5),
        uniform(1, "a", 6),
        *(uniform(1, "a", 5, stream) for stream in (Stream.DRAFT, Stream.ACCEPT, Stream.RESIDUAL)),
    }
    assert len(numbers) == 7


def test_a_seed_may_be_any_integer() -> None:
    assert uniform(-1, "a", 0) == uniform(2**64 - 1, "a", 0)
    assert 0.0 <= uniform(10**30, "a", 0) < 1.0


def test_the_numbers_are_the_same_in_every_version() -> None:
    assert [uniform(0, "request", position).hex() for position in range(2)] == PINNED


PINNED = ["0x1.4ad61a05126eap-2", "0x1.f3db3ee19518ap-2"]
