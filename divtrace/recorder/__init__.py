"""What a recorder computes from a step before it is written: hashes, logit statistics, interned ids."""
