"""The answers of the studio are those of the library: maps, tiles, arithmetic, masks, text, cuts, audits."""

from __future__ import annotations

import base64
import math
import struct

import pytest
import torch

from rearview import attend, audit, causal, dense, masked, observe
from rearview.errors import BadArgument
from rearview.generation import generate
from rearview.models import GPT, T5, T5Config
from rearview.text import ByteTokenizer
from rearview.text_model import TextModel
from rearview.webapp import Studio, passes, writing
from rearview.webapp.limits import Limits
from rearview.webapp.passes import captured_call
from rearview.webapp.workspace import ReadRun, Workspace
from tests.webapp.conftest import LIMITS, Client, model

TEXT = "I love sushi. Emma loves street food."
IDS = list(TEXT.encode())


@pytest.fixture(scope="module")
def read(client: Client) -> dict:
    return client.result("read", model="little", text=TEXT)


@pytest.fixture(scope="module")
def little() -> GPT:
    inner = model().model
    assert isinstance(inner, GPT)
    return inner


def floats(data: bytes) -> torch.Tensor:
    return torch.tensor(struct.unpack(f"<{len(data) // 4}f", data))


def test_reading_gives_the_observed_heads(client: Client, read: dict, little: GPT):
    assert read["contents"]["facts"] == ["2 layers, 4 heads", "37 positions"]
    assert read["contents"]["labels"][0][:4] == ["I", "␣", "l", "o"]
    with torch.no_grad():
        logits = little(torch.tensor([IDS]))[0]
    expected = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(IDS[1:]))
    assert read["loss"] == pytest.approx(float(expected), rel=1e-5)
    assert read["next"][0]["token"] == int(logits[-1].argmax())
    status, _, block = client.get(f"/api/runs/{read['run']}/block")
    assert (status, len(block) > 1000) == (200, True)


def test_tiles_are_the_weights(client: Client, read: dict, little: GPT):
    with observe(little) as seen, torch.no_grad():
        little(torch.tensor([IDS]))
    exact = seen.tile(1, 1)
    address = f"/api/runs/{read['run']}/tile?layer=1&row=1&left=4&right=20&top=8&bottom=24&bin="
    tile = floats(client.get(address + "1")[2])
    assert torch.allclose(tile[:256].view(16, 16), exact[8:24, 4:20], atol=1e-6)
    uniform = causal().to_bool(37) / causal().to_bool(37).sum(-1, keepdim=True)
    assert torch.allclose(tile[256:512].view(16, 16), uniform[8:24, 4:20], atol=1e-6)
    assert torch.allclose(tile[512:], exact[8:24, 0], atol=1e-6)
    pooled = floats(client.get(address + "4")[2])[:16].view(4, 4)
    assert torch.allclose(pooled, exact[8:24, 4:20].reshape(4, 4, 4, 4).sum(-1).mean(1), atol=1e-6)
    row = floats(client.get(f"/api/runs/{read['run']}/row?layer=1&row=1&query=30")[2])
    assert torch.allclose(row, exact[30], atol=1e-6)


@pytest.mark.parametrize(
    "query",
    [
        "layer=9&row=0&left=0&right=4&top=0&bottom=4&bin=1",
        "layer=0&row=0&left=4&right=4&top=0&bottom=4&bin=1",
        "layer=0",
        "layer=--1&row=0&left=0&right=4&top=0&bottom=4&bin=1",
        "layer=-&row=0&left=0&right=4&top=0&bottom=4&bin=1",
        "",
    ],
)
def test_wrong_tiles_are_refused(client: Client, read: dict, query: str):
    status, _, body = client.get(f"/api/runs/{read['run']}/tile?{query}")
    assert status == 400
    assert b"expected" in body
    assert client.get(f"/api/runs/nothing/tile?{query}")[0] == 400


def test_why_is_the_arithmetic_of_the_weight(client: Client, read: dict, little: GPT):
    found = client.result("why", run=read["run"], layer=1, head=0, query=20, key=7)
    call = captured_call(model(), IDS, layer=1)
    q, k = call.query[0, 0, 20].double(), call.key[0, 0, 7].double()
    assert found["dot"] == pytest.approx(float(q @ k), rel=1e-9)
    assert found["score"] == pytest.approx(float(q @ k) * call.scale, rel=1e-9)
    with observe(little) as seen, torch.no_grad():
        little(torch.tensor([IDS]))
    assert found["masked"]["weight"] == pytest.approx(float(seen.tile(1, 0)[20, 7]), rel=1e-4)
    assert found["masked"]["exponential"] / found["masked"]["total"] == pytest.approx(found["masked"]["weight"])
    assert found["hears"] == 21
    out = attend(call.query, call.key, call.value, mask=causal())[0, 0, 20]
    assert torch.allclose(torch.tensor(found["masked"]["output"]), out, atol=1e-5)
    assert found["unmasked"]["weight"] < found["masked"]["weight"]
    blocked = client.result("why", run=read["run"], layer=1, head=0, query=7, key=20)
    assert (blocked["heard"], blocked["masked"]["weight"]) == (False, 0.0)
    assert blocked["unmasked"]["weight"] > 0


def test_neighbouring_pairs_run_the_model_once(client: Client, read: dict, running: Studio):
    inner = running._workspace.model("little").model
    passes: list[int] = []
    hook = inner.register_forward_pre_hook(lambda *_: passes.append(1))
    for key in (3, 4, 5):
        client.result("why", run=read["run"], layer=0, head=1, query=9, key=key)
    hook.remove()
    assert len(passes) == 1


def test_every_token_of_an_answer_is_worked_out():
    torch.manual_seed(0)
    inner = T5(T5Config(vocab_size=257, layers=1, heads=2, width=8)).eval()
    with Studio([TextModel("answers", inner, ByteTokenizer())], [], limits=LIMITS) as running:
        client = Client(running)
        read = client.result("read", model="answers", text="I love")
        assert "next" not in read
        layers = [each["name"] for each in read["contents"]["layers"]]
        own = next(n for n, name in enumerate(layers) if "decoder" in name)
        found = client.result("why", run=read["run"], layer=own, head=0, query=3, key=1)
        row = floats(client.get(f"/api/runs/{read['run']}/row?layer={own}&row=0&query=3")[2])
        assert found["masked"]["weight"] == pytest.approx(float(row[1]), abs=1e-6)
        assert "it is a T5, which answers one" in client.error("replay", run=read["run"], position=0)
        assert "it does not predict the next token" in client.error("write", model="answers", text="I love")
        assert "not a model that continues a text" in client.error("rank", run=read["run"], position=0, what="heads")


def test_all_steps_are_a_page_without_an_origin(client: Client, read: dict):
    page = client.result("steps", run=read["run"], layer=0, head=1)["page"]
    status, headers, body = client.get(f"/api/pages/{page}")
    assert (status, body[:15]) == (200, b"<!doctype html>")
    assert headers["content-security-policy"] == "sandbox allow-scripts; frame-ancestors 'self'"
    assert "content-disposition" not in headers
    ahead = client.result("read", model="little", text=TEXT, mask="full()", replace=True)
    assert "Use a text of up to 24 tokens." in client.error("steps", run=ahead["run"], layer=0, head=1)


def test_a_worked_example_is_a_page(client: Client):
    found = client.result("example", name="restaurant")
    assert found["title"] == "Four people recommend a restaurant, one after the other"
    assert b"Emma" in client.get(f"/api/pages/{found['page']}")[2]
    assert (
        client.error("example", name="../etc") == "name: expected one of: restaurant, love, five-tokens, got '../etc'."
    )


def test_a_mask_with_its_cost_and_its_difference(client: Client):
    found = client.result("mask", mask="causal() & window(3)", length=8, model="little")
    assert found["cells"][0][5] == "00011100"
    assert found["ranges"][5] == [[3, 6]]
    assert (found["own"], found["onlyOwn"], found["onlyThis"]) == ("causal()", 15, 0)
    assert found["engine"] in {"native", "blocks", "sdpa", "flex", "hopper"}
    assert {each["name"] for each in found["others"]} > {"reference"}
    assert client.error("mask", mask="causal(", length=8).startswith("this cannot be read: '(' was never closed")
    assert client.error("mask", mask="causal()", length=0).startswith("length: expected a number from 1 to")
    long = client.result("mask", mask="causal()", length=4000)
    assert (long["shown"], len(long["cells"][0])) == (96, 96)


def test_drawn_cells_become_ranges(client: Client):
    drawn = "ranges([[0, 0], [0, 0], [0, 2]], [[1, 0], [2, 0], [1, 3]])"
    found = client.result("mask", mask=drawn, length=3)
    assert found["cells"][0] == ["100", "110", "101"]


def test_writing_is_generation(client: Client, little: GPT):
    events = client.job("write", model="little", text="I love", tokens=12, temperature=0)
    tokens = [value for name, value in events if name == "token"]
    expected = generate(little, list(b"I love"), max_new_tokens=12, temperature=0).finish().tokens[0]
    assert [token["alternatives"][0]["token"] for token in tokens] == expected
    assert events[-1] == ("result", {"tokens": 12, "why": "length"})
    rows = floats(base64.b64decode(tokens[3]["attention"])).view(2, -1)
    assert rows.shape == (2, 9)
    with observe(little) as seen, torch.no_grad():
        little(torch.tensor([[*b"I love", *expected[:3]]]))
    exact = torch.stack([torch.stack([seen.tile(layer, head)[-1] for head in range(2)]).mean(0) for layer in range(2)])
    assert torch.allclose(rows, exact, atol=1e-5)


def test_writing_after_a_long_text_shows_its_end(client: Client, monkeypatch: pytest.MonkeyPatch):
    whole = client.job("write", model="little", text=TEXT, tokens=2, temperature=0)
    monkeypatch.setattr(writing, "MOST_SHOWN", 8)
    events = client.job("write", model="little", text=TEXT, tokens=2, temperature=0)
    assert (events[1][1]["labels"], events[1][1]["before"]) == (whole[1][1]["labels"][-8:], len(IDS) - 8)
    for (_, some), (_, every) in zip(events[2:4], whole[2:4], strict=True):
        rows, exact = (floats(base64.b64decode(each["attention"])).view(2, -1) for each in (some, every))
        assert torch.equal(rows, exact[:, -8:])


def test_writing_without_the_mask_looks_ahead(client: Client):
    options = {"model": "little", "text": "I love", "tokens": 5, "temperature": 0}
    events = client.job("write", **options, without_mask=True)
    with_mask = [v["alternatives"] for n, v in client.job("write", **options) if n == "token"]
    without = [v["alternatives"] for n, v in events if n == "token"]
    assert len(without) == 5
    assert with_mask[0] != without[0]


def test_seeds_and_the_edges_of_writing(client: Client):
    options = {"model": "little", "text": "I love", "tokens": 6, "temperature": 1.0, "top_k": 20}
    texts = [
        "".join(v["label"] for n, v in client.job("write", **options, seed=seed) if n == "token") for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]
    assert client.error("write", **{**options, "tokens": 0}).startswith("tokens: expected a number from 1 to 300")
    assert client.error("write", **{**options, "temperature": -1}).startswith(
        "temperature: expected a number from 0 to 10"
    )
    long = client.job("write", **{**options, "text": "x" * 400, "tokens": 20})
    assert "the prompt was cut at its beginning to its last 237 tokens" in dict(long)["prompt"]["remark"]


def test_a_cut_is_a_mask(client: Client, read: dict, little: GPT):
    found = client.result(
        "cut", run=read["run"], position=36, cuts=[{"layer": 1, "head": 0, "key": 4}, {"layer": 0, "query": 30}]
    )
    tokens = torch.tensor([IDS])
    heard = torch.ones(37, 37, dtype=torch.bool)
    heard[:, 4] = False

    rows = torch.ones(37, 37, dtype=torch.bool)
    rows[30] = False
    with (
        torch.no_grad(),
        masked(little, layer=1, heads=0, mask=dense(heard)),
        masked(little, layer=0, mask=dense(rows)),
    ):
        logits = little(tokens)[0]
    expected = logits[36].double().softmax(-1)
    assert found["after"]["next"][0]["probability"] == pytest.approx(float(expected.max()), rel=1e-6)
    assert found["before"]["loss"] == pytest.approx(read["loss"], rel=1e-6)
    loss = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(IDS[1:]))
    assert found["after"]["loss"] == pytest.approx(float(loss), rel=1e-5)
    nothing = client.result("cut", run=read["run"], position=36, cuts=[])
    assert nothing["before"] == nothing["after"]
    assert "head" in client.error("cut", run=read["run"], position=36, cuts=[{"layer": 1, "head": 7}])


@pytest.mark.parametrize("what", ["links", "tokens", "heads"])
def test_what_matters_is_each_cut_by_itself(client: Client, read: dict, what: str):
    found = client.result("rank", run=read["run"], position=20, what=what)
    assert found["tried"] == {"links": 21, "tokens": 21, "heads": 4}[what]
    first = found["effects"][0]
    cut = {"layer": first["layer"], "head": first["head"]} if what == "heads" else {"key": first["key"]}
    cut |= {"query": 20} if what == "links" else {}
    alone = client.result("cut", run=read["run"], position=20, cuts=[cut])
    before = {row["label"]: row["probability"] for row in alone["before"]["next"]}
    moved = [effect["moved"] for effect in found["effects"]]
    assert moved == sorted(moved, reverse=True)
    assert moved[0] > 0
    target = next((row for row in alone["likely"] if row["label"] == found["target"]), None)
    if target is not None:
        assert math.log(target["after"] / target["before"]) == pytest.approx(first["change"], abs=1e-4)
    assert before


def test_a_text_with_too_many_logits_is_cut_without_its_loss(
    client: Client, read: dict, monkeypatch: pytest.MonkeyPatch
):
    cuts = [{"layer": 1, "head": 0, "key": 3}]
    whole = client.result("cut", run=read["run"], position=20, cuts=cuts)
    monkeypatch.setattr(passes, "MOST_LOGITS", 257 * 36)
    few = client.result("cut", run=read["run"], position=20, cuts=cuts)
    assert (few["before"]["loss"], few["after"]["loss"]) == (None, None)
    for some, every in zip(few["likely"], whole["likely"], strict=True):
        assert some["label"] == every["label"]
        assert (some["before"], some["after"]) == pytest.approx((every["before"], every["after"]), rel=1e-5)
    assert client.error("replay", run=read["run"], position=20).startswith("text: expected at most ")


def test_an_audit_with_its_checks(client: Client, little: GPT):
    events = client.job("peek", model="little")
    names = [value["name"] for name, value in events if name == "check"]
    assert names[:2] == ["batch isolation", "suffix swap"]
    name, report = events[-1]
    assert (name, report["verdict"]) == ("result", "PROVEN")
    assert report["assumptions"]
    status, headers, page = client.get(f"/api/pages/{report['page']}?save=1")
    assert (status, page[:15]) == (200, b"<!doctype html>")
    assert headers["content-disposition"] == 'attachment; filename="audit.html"'
    assert audit(little, torch.randint(257, (2, 9))).verdict.value == "PROVEN"
    narrow = client.result("peek", model="little", contract="causal() & window(2)")
    assert narrow["verdict"] == "LEAKS"
    witness = next(each for each in narrow["witnesses"] if each["kind"] == "time")
    assert f"position {witness['query']} moves by" in witness["sentence"]


def test_a_changed_token_moves_later_outputs_only(client: Client, read: dict):
    found = client.result("replay", run=read["run"], position=12, token=200)
    assert found["earlier"] == 0.0
    assert found["moved"][12] > 0
    ahead = client.result("read", model="little", text=TEXT, mask="full()", replace=True)
    assert ahead["loss"] != read["loss"]


def test_a_changed_token_becomes_another_of_the_text(client: Client, read: dict):
    found = client.result("replay", run=read["run"], position=12)
    assert (found["before"], found["label"]) == (".", "␣")
    alike = client.result("read", model="little", text="aaa")
    assert client.result("replay", run=alike["run"], position=2)["label"] == "b"


def test_comparing_is_a_difference(client: Client):
    found = client.result("compare", model="little", other="little", text=TEXT, mask="", other_mask="window(4)")
    assert found["contents"]["kind"] == "diff"
    assert found["second"]["name"] == "little & window(4)"
    assert found["first"]["loss"] != found["second"]["loss"]
    assert client.get(f"/api/runs/{found['run']}/tile?layer=0&row=0&left=0&right=4&top=0&bottom=4&bin=1")[0] == 400
    for name in ("first", "second"):
        side = client.result("open", run=found["runs"][name])
        assert (side["contents"]["kind"], side["contents"]["title"]) == ("seen", found[name]["name"])
        assert client.get(f"/api/runs/{found['runs'][name]}/block")[0] == 200


def test_a_saved_page_is_the_page_of_observe(client: Client):
    page = client.result("save", run=client.result("read", model="little", text=TEXT)["run"])["page"]
    status, headers, body = client.get(f"/api/pages/{page}?save=1")
    assert (status, headers["content-disposition"]) == (200, 'attachment; filename="attention.html"')
    assert body.startswith(b"<!doctype html>")


def test_old_runs_are_forgotten(client: Client):
    first = client.result("read", model="little", text="one")
    for text in ("two", "three", "four", "five"):
        client.result("read", model="little", text=text)
    assert client.error("why", run=first["run"], layer=0, head=0, query=0, key=0) == (
        f"run: expected a run that the studio still holds, got {first['run']!r}. Read again."
    )


def test_readings_are_held_by_their_memory(little: GPT):
    with observe(little, keep=1 << 20) as seen, torch.no_grad():
        little(torch.tensor([IDS]))
    run = ReadRun("little", IDS, None, False, seen)
    # Queries and keys of 37 tokens, two heads of size 8, in two layers, as float32.
    assert run.bytes == 2 * 2 * 37 * 2 * 8 * 4
    workspace = Workspace(Limits(held=2 * run.bytes))
    first, second, third = (workspace.keep(run) for _ in range(3))
    assert workspace.run(second) is workspace.run(third) is run
    with pytest.raises(BadArgument, match="a run that the studio still holds"):
        workspace.run(first)
    small = Workspace(Limits(held=1))
    assert small.run(small.keep(run)) is run


def test_texts_that_are_refused(client: Client):
    assert client.error("read", model="little", text="").startswith("text: expected a text of at least one token")
    assert client.error("read", model="other", text="x") == "model: expected one of: little, got 'other'."
    assert client.error("read", model="little", text="x", mask="prefix(1").startswith("this cannot be read")
    long = client.result("read", model="little", text="x" * 300)
    assert long["remark"] == "reading the first 256 of 300 tokens, because the model has 256 positions"


def test_a_mask_without_ranges_is_compared_at_a_short_length(client: Client):
    found = client.result("mask", mask="dilated(2)", length=4000, model="little")
    assert (found["compared"], found["ownAt"], found["ranges"]) == (1024, 256, None)
    assert client.result("mask", mask="window(2)", length=4000, model="little")["compared"] == 4000


def test_a_mask_of_many_heads_is_not_looked_at_at_any_length():
    heads = f"per_head([{', '.join(['causal()'] * 64)}])"
    with Studio([model()], [], limits=Limits(mask_rows=4096)) as running:
        client = Client(running)
        assert client.result("mask", mask=heads, length=64)["heads"] == 64
        assert client.error("mask", mask=heads, length=65) == (
            "length: expected at most 64 for a mask of 64 heads or items, got 65."
        )
        assert client.result("mask", mask="causal()", length=4096)["length"] == 4096


def test_a_read_tells_how_far_it_is(client: Client):
    steps = [value for name, value in client.job("read", model="little", text="one") if name == "progress"]
    assert steps == [{"done": 1, "of": 2}, {"done": 2, "of": 2}]


def test_masks_with_data_for_other_lengths(client: Client):
    assert "documents" in client.error("mask", mask="documents([0, 0, 1])", length=8)
