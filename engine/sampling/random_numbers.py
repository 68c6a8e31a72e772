"""Random numbers as a pure function of (seed, request, position, stream): no state, so no order of calls.

The counter-based generator is numpy's Philox-4x64-10 (Salmon et al. 2011, "Parallel random numbers: as easy
as 1, 2, 3"). The seed and a hash of the request id are its key, position and stream its counter.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import xxhash

WORD = 1 << 64
UNIT_OF_53_BITS = 2.0**-53


class Stream(IntEnum):
    """What a random number at a position is for; numbers of different streams are independent."""

    TOKEN = 0
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3


def uniform(seed: int, request_key: str, position: int, stream: Stream = Stream.TOKEN) -> float:
    """Return a number in [0, 1) with 53 random bits.

    Args:
        seed: any integer; taken modulo 2**64.
        request_key: the request's id. Samples of one prompt have distinct ids and therefore draw differently.
        position: index of the token that is decided, prompt and output together.
        stream: what the number decides.
    """
    key = (seed % WORD, xxhash.xxh3_64_intdigest(request_key.encode()))
    generator = np.random.Philox(key=np.array(key, np.uint64), counter=np.array((position, stream, 0, 0), np.uint64))
    return (int(generator.random_raw()) >> 11) * UNIT_OF_53_BITS
