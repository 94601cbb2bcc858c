"""The metrics of several processes as one text: each metric declared once, each sample with its
process."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from trading_intents.telemetry import PROCESS_UP, merge_metrics

LABELS = st.dictionaries(st.text(max_size=8), st.integers(0, 9), max_size=3)


def text_of(labels: dict[str, int], is_counted: bool) -> str:
    registry = CollectorRegistry()
    Gauge(*PROCESS_UP, registry=registry).set(1)
    gauge = Gauge("a_gauge", "With {braces}, # HELP and\nlines.", ["odd"], registry=registry)
    for value, number in labels.items():
        gauge.labels(value).set(number)
    if is_counted:
        Counter("a_counter_total", "Counts.", registry=registry).inc(2)
        Histogram("seconds", "Times.", ["route"], registry=registry).labels("/{id}").observe(0.2)
    return generate_latest(registry).decode()


def samples(text: str) -> set[tuple[str, str, frozenset[tuple[str, str]], float]]:
    return {
        (family.name, sample.name, frozenset(sample.labels.items()), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


@given(api=LABELS, worker=LABELS, is_counted=st.booleans())
def test_the_merged_text_has_every_sample_with_its_process(
    api: dict[str, int], worker: dict[str, int], is_counted: bool
) -> None:
    texts = {"api": text_of(api, True), "worker-1": text_of(worker, is_counted)}
    expected = {
        (family, name, labels | {("process", process)}, value)
        for process, text in texts.items()
        for family, name, labels, value in samples(text)
    }
    expected.add(("ti_process_up", "ti_process_up", frozenset({("process", "frozen")}), 0.0))
    merged = merge_metrics({**texts, "frozen": None})
    assert samples(merged) == expected
    names = [family.name for family in text_string_to_metric_families(merged)]
    assert len(names) == len(set(names))
