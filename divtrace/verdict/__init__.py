"""From two traces to a verdict: controls, origin, proof, one sentence. Must not know the terminal."""
