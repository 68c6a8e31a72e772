"""How sampled proposals are accepted. A name alone, so that settings need not import models."""

from __future__ import annotations

from enum import StrEnum


class Acceptance(StrEnum):
    """How proposals for sampled requests are to be accepted (see `verify`).

    `equality`: the draft draws with the very random number that the target will use, and gives no
    distribution: the output stays that of plain decoding, token for token. `rejection`: it draws with a
    number of its own and gives its distribution. Greedy requests are the same under both.
    """

    EQUALITY = "equality"
    REJECTION = "rejection"
