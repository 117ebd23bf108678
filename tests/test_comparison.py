"""Several campaigns on one page."""

import json
import sqlite3

import pytest
from strict_html import check_html

from fault_injection.commands.main import main


@pytest.fixture(scope="module")
def compared(results, tmp_path_factory):
    out = tmp_path_factory.mktemp("compared")
    assert main(["report", *(str(results / name) for name in ("campaign", "latent")), "--out", str(out)]) == 0
    return out


def test_the_page_has_the_counts_of_both_campaigns(compared, results):
    text = (compared / "comparison.html").read_text()
    check_html(text)
    assert {path.stem for path in compared.glob("figures/*.svg")} == {
        *("campaigns", "sites", "stages", "operands", "bits", "epochs", "models", "latency")
    }
    for name in ("campaign", "latent"):
        with sqlite3.connect(f"file:{results / name / 'campaign.sqlite'}?mode=ro", uri=True) as store:
            for stage, count in store.execute("SELECT stage, count(*) FROM experiments GROUP BY stage"):
                assert f">{stage}</th>" in text and f'<td class="number">{count:,}</td>' in text
        store.close()
    assert ">exponent 1</th>" in text  # bit 30 of a float32, by its role
    assert ">models</th>" in text  # the two plans do not share them


def test_one_campaign_has_a_report_and_several_a_comparison(capsys, results, tmp_path):
    campaign = str(results / "campaign")
    assert main(["report", campaign, "--out", str(tmp_path)]) == 2
    assert "--out belongs to a comparison" in capsys.readouterr().err
    assert main(["report", campaign, campaign, "--out", str(tmp_path / "out")]) == 2
    assert "two campaigns are called 'campaign'" in capsys.readouterr().err
    assert main(["report", campaign, str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()


def test_the_result_is_one_line_of_json(capsys, results, tmp_path):
    folders = [str(results / name) for name in ("campaign", "latent")]
    assert main(["report", *folders, "--out", str(tmp_path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [campaign["done"] for campaign in said["campaigns"]] == [2400, 420]
