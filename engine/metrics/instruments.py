"""Every Prometheus instrument of the engine, by name. Must not know events.

Names are those of vLLM V1 with the prefix `divtrace:`, so that dashboards port by replacing the prefix;
`packed_rows`, `head_rows`, `linear_calls`, `attention_calls`, `row_threshold_crossings`, `near_tie_decisions` and
`step_phase_seconds` have no counterpart there.
"""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

PREFIX = "divtrace:"

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
ITERATION_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 64, 128, 256, 512, 1024, 2048, 4096)


class Instruments:
    """The engine's gauges, counters and histograms, in one registry. Every one carries the label `model_name`."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self._registry = registry
        self._model_name = model_name
        self.num_requests_running = self._gauge("num_requests_running", "Requests that have K/V.")
        self.num_requests_waiting = self._gauge("num_requests_waiting", "Requests in the waiting queue.")
        self.kv_cache_usage = self._gauge("kv_cache_usage_perc", "Share of K/V blocks in use, 1 is all.")
        self.preemptions = self._counter("num_preemptions", "Requests that lost their K/V and are recomputed.")
        self.prefix_queries = self._counter("prefix_cache_queries", "Tokens looked up in the prefix cache.")
        self.prefix_hits = self._counter("prefix_cache_hits", "Tokens found in the prefix cache.")
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of requests that reached their first token.")
        self.generation_tokens = self._counter("generation_tokens", "Committed output tokens.")
        self.drafts = self._counter("spec_decode_num_drafts", "Verifications.")
        self.draft_tokens = self._counter("spec_decode_num_draft_tokens", "Proposed tokens.")
        self.accepted_tokens = self._counter("spec_decode_num_accepted_tokens", "Proposed tokens that were committed.")
        self.time_to_first_token = self._seconds("time_to_first_token_seconds", "Queue entry to first token.")
        self.inter_token_latency = self._seconds("inter_token_latency_seconds", "Between two bursts of tokens.")
        self.inter_token_latency_per_token = self._seconds(
            "inter_token_latency_per_token_seconds", "The same, divided among the tokens of a burst."
        )
        self.time_per_output_token = self._seconds(
            "request_time_per_output_token_seconds", "Decode time by tokens after the first, by request."
        )
        self.end_to_end = self._seconds("e2e_request_latency_seconds", "Queue entry to end.")
        self.queue_time = self._seconds("request_queue_time_seconds", "Queue entry to first rows.")
        self.prefill_time = self._seconds("request_prefill_time_seconds", "First rows to first token.")
        self.decode_time = self._seconds("request_decode_time_seconds", "First token to last token.")
        self.inference_time = self._seconds("request_inference_time_seconds", "First rows to last token.")
        self.request_prompt_tokens = self._histogram("request_prompt_tokens", "Prompt tokens by request.", TOKENS)
        self.request_generation_tokens = self._histogram(
            "request_generation_tokens", "Committed tokens by request.", TOKENS
        )
        self.request_max_tokens = self._histogram("request_params_max_tokens", "max_tokens by request.", TOKENS)
        self.iteration_tokens = self._histogram(
            "iteration_tokens_total", "Rows of a step, in vLLM's buckets.", ITERATION_TOKENS
        )
        self.packed_rows = self._histogram("packed_rows", "Rows of the transformer's linears in a step.", ROWS)
        self.head_rows = self._histogram("head_rows", "Rows of the output projection in a step.", ROWS)
        self._request_success = self._labelled("request_success", "Ended requests by reason.", "finished_reason")
        self._accepted_per_position = self._labelled(
            "spec_decode_num_accepted_tokens_per_pos", "Accepted proposals by place in the draft.", "position"
        )
        self._linear_calls = self._labelled("linear_calls", "Linear calls.", "path", "site_class")
        self._attention_calls = self._labelled("attention_calls", "Attention sites by path.", "path")
        self._crossings = self._labelled(
            "row_threshold_crossings", "Steps whose linears took other paths than in the step before.", "operation"
        )
        self._near_ties = self._labelled(
            "near_tie_decisions", "Committed decisions whose two best logits are at most so far apart.", "margin_le"
        )
        self._phase_seconds = self._labelled("step_phase_seconds", "Seconds by phase of a step.", "phase")

    def request_ended(self, reason: str) -> None:
        """Count an ended request."""
        self._request_success.labels(self._model_name, reason).inc()

    def proposal_accepted_at(self, position: int) -> None:
        """Count an accepted proposal by its place in the draft, from 0."""
        self._accepted_per_position.labels(self._model_name, str(position)).inc()

    def linear_called(self, path: str, site_class: str, calls: int) -> None:
        """Count linear calls of one step."""
        self._linear_calls.labels(self._model_name, path, site_class).inc(calls)

    def attention_called(self, path: str, calls: int) -> None:
        """Count attention sites of one step."""
        self._attention_calls.labels(self._model_name, path).inc(calls)

    def threshold_crossed(self, operation: str) -> None:
        """Count a step whose paths of an operation are not those of the step before."""
        self._crossings.labels(self._model_name, operation).inc()

    def near_tie(self, margin: float) -> None:
        """Count a decision at most `margin` apart."""
        self._near_ties.labels(self._model_name, f"{margin:g}").inc()

    def phase_took(self, phase: str, elapsed_s: float) -> None:
        """Add a phase's time."""
        self._phase_seconds.labels(self._model_name, phase).inc(elapsed_s)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(PREFIX + name, text, ["model_name"], registry=self._registry).labels(self._model_name)

    def _counter(self, name: str, text: str) -> Counter:
        return self._labelled(name, text).labels(self._model_name)

    def _labelled(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(PREFIX + name, text, ["model_name", *labels], registry=self._registry)

    def _seconds(self, name: str, text: str) -> Histogram:
        return self._histogram(name, text, SECONDS)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        made = Histogram(PREFIX + name, text, ["model_name"], registry=self._registry, buckets=buckets)
        return made.labels(self._model_name)
