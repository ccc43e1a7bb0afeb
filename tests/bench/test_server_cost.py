"""What keys cost a real server, and the arithmetic from there to users."""

from __future__ import annotations

from pathlib import Path

import pytest

from completion_ls.bench.llama_cpp import PeerError
from completion_ls.bench.server_cost import NO_SESSION, OURS, Capacity, Cost, Key, measure
from completion_ls.bench.server_figures import (
    Figures,
    Rates,
    Team,
    arithmetic,
    medians,
    summarize,
    verdicts,
)
from completion_ls.bench.trace import cut, read_trace, recorded_gaps
from completion_ls.bench.watched_server import Work, read_metrics
from completion_ls.cli.main import main

OWN = Path(__file__).parents[1] / "data" / "own_trace.json.gz"


@pytest.mark.process
@pytest.mark.model
def test_a_key_costs_a_server_three_prompt_tokens_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPLETION_LS_PROMPT__MAX_TOKENS", "256")  # the first one is read soon
    trace = read_trace(OWN)
    gaps = recorded_gaps(trace.times, most_s=0.5)
    stretch = cut(trace, start=200, keystrokes=20, gaps_s=gaps)
    typed = [0]
    each, ours = measure(stretch, (NO_SESSION, OURS), 4, lambda arm, done: typed.append(done))
    assert typed.count(20) == 2
    for cost in (each, ours):
        assert len(cost.keys) == 20
        assert cost.requests > 0 and 0 <= cost.cancelled <= cost.requests
        figures = summarize(cost)
        assert figures.prompt_p50 <= 3
        assert figures.decoded > 0 and figures.passes > 0
    assert ours.requests < each.requests
    assert all(is_met for _, is_met in verdicts([summarize(each), summarize(ours)]))


def test_a_slow_prompt_is_not_allowed() -> None:
    cost = Cost(OURS.name, (Key(1, 1, Work(4, 1, 1)),), 1, 0, 0)
    [(text, is_met)] = verdicts([summarize(cost)])
    assert not is_met and "4 prompt tokens" in text and "NOT met" in text


def test_an_arm_is_summed_up_by_key() -> None:
    keys = (Key(2, 1, Work(10, 4, 3)), Key(0, 0, Work(0, 0, 0)), Key(1, 0, Work(2, 2, 3)))
    found = summarize(Cost("ours", keys, requests=3, cancelled=1, unread=3))
    assert (found.prompt_p50, found.prompt) == (2, 4)
    assert (found.decoded, found.passes_p50, found.passes) == (2, 3, 2)
    assert found.requests == 1
    assert found.without_request_share == pytest.approx(2 / 3)
    assert found.cancelled_share == pytest.approx(1 / 3)
    assert found.unread == 1


def test_the_median_of_rounds_is_by_arm_and_figure() -> None:
    def of(arm: str, value: float) -> Figures:
        return Figures(arm, *[value] * 11)

    rounds = [[of("a", 1), of("b", 10)], [of("a", 5), of("b", 30)], [of("a", 2), of("b", 20)]]
    assert medians(rounds) == [of("a", 2), of("b", 20)]


def test_users_are_passes_of_a_server_by_those_of_a_user() -> None:
    figures = [Figures("a", *[3.0] * 11), Figures("b", *[0.5] * 11)]
    team = Team(users=100, typing_share=0.1)
    rates = Rates.measured(Capacity(80, 4, 120, 12))
    lines = {line.text: line for line in arithmetic(figures, 4.0, team, rates)}
    assert lines["= passes a second of a user, on average"].values == pytest.approx((1.2, 0.2))
    assert lines["= passes a second that reach the server"].values == pytest.approx((120, 20))
    assert lines["users a server, by passes"].values == pytest.approx((100, 600))
    # 1.2 passes and 1.2 prompt tokens a second: a hundredth and a tenth of the server.
    both = lines["users a server, by passes and prompts"]
    assert both.values == pytest.approx((1 / 0.11, 6 / 0.11))
    assert both.known == "extrapolated"


def test_another_machine_has_what_was_given_of_it_and_nothing_else() -> None:
    figures = [Figures("a", *[3.0] * 11)]
    team = Team(users=100, typing_share=0.1)
    *_, given, users = arithmetic(figures, 4.0, team, Rates.given(6000.0, None))
    assert given.known == "given: --passes-per-second"
    assert users.values == pytest.approx((5000,))
    *_, last = arithmetic(figures, 4.0, team, Rates.given(6000.0, 600.0))
    assert last.values == pytest.approx((1 / (1.2 / 6000 + 1.2 / 600),))


def test_metrics_count_a_pass_for_each_request_in_it() -> None:
    text = """# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
llamacpp:prompt_tokens_total 181
llamacpp:tokens_predicted_total 7
llamacpp:n_decode_total 10
llamacpp:n_busy_slots_per_decode 1.5
"""
    assert read_metrics(text) == Work(181, 7, 15)
    with pytest.raises(PeerError, match="does not tell"):
        read_metrics('{"error": {"code": 501}}')


@pytest.mark.parametrize("share", ["0", "1.5", "a", "nan"])
def test_a_share_that_is_none_is_refused(share: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "server", str(OWN), "--typing-share", share])
    assert "is not a share" in capsys.readouterr().err
