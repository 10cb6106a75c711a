"""Tasks about pictures in documents: real pages, and a model that decodes the pixels it is shown."""

import io
from pathlib import Path

import msgspec
import pytest
from PIL import Image

from agentflow.errors import ConfigurationError
from agentflow.inspection import open_runs
from agentflow.journal import NewSeed
from agentflow.synthesis import TASKS, Report, load_config
from agentflow.synthesis.pipeline import SynthesisRun
from agentflow.tasks import TaskAttempt, TaskProblem, VerifiableTask
from agentflow.tasks._document_pictures import views_of
from agentflow.tasks._printed_values import answer_verdict
from agentflow.trace import Region
from tests.agentflow.tasks._sight import Figure, Sight, harbour_figures, illustrated_pdf, sight

CONFIG = Path(__file__).parents[3] / "configs/synthesis/document_pictures.yaml"
SEED = NewSeed("A report about the tonnage of harbours")


async def synthesise(
    document: Path, seeing: Sight, pages: int, most: int, monkeypatch: pytest.MonkeyPatch, *more: str
) -> tuple[Report, list[VerifiableTask]]:
    """Run the printed configuration on a document; return the report and the tasks in the file."""
    monkeypatch.setenv("DOCUMENT", str(document))
    out = document.parent / "out"
    async with sight(seeing) as url:
        shape = (f"max_depth={pages}", "branching_factor=1", f"max_selected_traj={most}", f"output_dir={out}")
        model = ("model_name=sight", f"base_url={url}", "api_key=x", "control=false", "number_of_seed=1")
        report = await SynthesisRun(load_config(CONFIG, [*shape, *model, *more])).run([SEED])
    lines = (out / TASKS).read_bytes().splitlines()
    return report, [msgspec.json.decode(line, type=VerifiableTask) for line in lines]


def harbour_report(folder: Path, pages: int) -> Path:
    """Write a report with two pictures on each page."""
    figures = harbour_figures(2 * pages)
    return illustrated_pdf(folder / "report.pdf", [figures[at : at + 2] for at in range(0, 2 * pages, 2)])


async def check_tasks(pages: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Derive a task from every picture; the value passes, and nothing else that somebody could answer."""
    seeing = Sight(pages, known={"*": "77 tons"})
    report, tasks = await synthesise(harbour_report(folder, pages), seeing, pages, 2 * pages, monkeypatch)
    assert report.tasks == len(tasks) == 2 * pages, report
    assert len({task.instruction for task in tasks}) == 2 * pages
    for task in tasks:
        names = [each.name.partition("/")[0] for each in task.wrong]
        assert {"no_op", "masked_page", "sibling", "other_figure", "closed_book"} == set(names)
        assert task.metadata["agreed"] == 2
        for _ in range(2):
            assert answer_verdict(task, task.gold.answer).passed
            assert not any(
                answer_verdict(task, each.answer).passed
                for each in (TaskAttempt(name="initial"), *task.wrong)
            )
    # Per picture one call for its facts, per task eight: its words, two crops, the covered page, two siblings, two from memory.
    assert len(seeing.requests) <= 2 * pages + 8 * len(tasks) + 2


@pytest.mark.promise("tasks:document:verified")
async def test_a_task_about_a_picture_is_answered_by_its_region_and_by_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await check_tasks(2, tmp_path, monkeypatch)


@pytest.mark.promise("tasks:document:cited")
async def test_the_region_of_a_task_is_a_citation_of_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = harbour_report(tmp_path, 1)
    _, tasks = await synthesise(document, Sight(1, known={"*": "77 tons"}), 1, 2, monkeypatch)
    with open_runs(tmp_path / "out") as runs:
        node = runs.run(runs.runs()[0].id).node("seed_001", "0")
    (image,) = [part.blob for part in node.parts if part.blob]
    assert [(cite.pair, cite.quote, cite.image, cite.region) for cite in node.citations] == [
        (task.id, task.gold.answer, image, msgspec.convert(task.metadata["region"], Region)) for task in tasks
    ]
    assert tasks


@pytest.mark.soak
@pytest.mark.promise("tasks:document:verified")
async def test_forty_tasks_about_pictures_are_answered_by_their_regions_and_by_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await check_tasks(20, tmp_path, monkeypatch)


@pytest.mark.promise("tasks:document:rejected")
async def test_pictures_without_a_good_question_are_rejected_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, missed, twice, told, known, first, read = (
        Figure(f"Port {name}", "tonnage", f"{4000 + 11 * number}", "tons")
        for number, name in enumerate(("Good", "Missed", "Twice", "Told", "Known", "First", "Read"))
    )
    unclear = first._replace(value="999")
    pages = [[good, missed], [twice, twice], [told, known], [first, read], [unclear, told]]
    document = illustrated_pdf(tmp_path / "report.pdf", pages, [read.words.replace(read.value, "4,066")])
    seeing = Sight(len(pages), known={known.subject: "4,044 tons"}, missed=missed.subject)
    report, [task] = await synthesise(document, seeing, len(pages) + 1, 9, monkeypatch)
    assert task.instruction.startswith(f"What is the {good.relation} of {good.subject}?")
    assert report.rejected_tasks == {
        TaskProblem.AMBIGUOUS: 2,
        TaskProblem.CLOSED_BOOK: 1,
        TaskProblem.ELSEWHERE: 4,
        TaskProblem.NOT_SHOWN: 2,
    }


def png(size: tuple[int, int] = (40, 20), form: str = "PNG") -> bytes:
    """Return a white picture."""
    out = io.BytesIO()
    Image.new("RGB", size, "white").save(out, form)
    return out.getvalue()


@pytest.mark.promise("tasks:document:images")
@pytest.mark.parametrize(
    ("data", "region", "usable"),
    [
        (png(), Region(1, 0.0, 0.0, 0.5, 0.5), True),
        (png(form="JPEG"), Region(1, 0.5, 0.5, 1.0, 1.0), True),
        (png((1, 1)), Region(1, 0.4, 0.4, 0.41, 0.41), True),
        (png(), Region(1, 0.0, 0.0, 1.0, 0.9), False),
        (png(form="BMP"), Region(1, 0.0, 0.0, 0.5, 0.5), False),
        (png()[:40], Region(1, 0.0, 0.0, 0.5, 0.5), False),
        (b"", Region(1, 0.0, 0.0, 0.5, 0.5), False),
    ],
    ids=["PNG", "JPEG", "one pixel", "most of it", "other format", "cut off", "empty"],
)
async def test_a_region_is_cut_out_and_covered(data: bytes, region: Region, usable: bool) -> None:
    views = await views_of(data, region)
    assert (views is not None) is usable
    if views is not None:
        whole, crop, masked = (Image.open(io.BytesIO(one)) for one in (data, views.crop, views.masked))
        assert masked.size == whole.size
        colours = masked.convert("RGB").getcolors() or []
        grey = next(count for count, colour in colours if colour == (127, 127, 127))
        assert grey == crop.width * crop.height


@pytest.mark.promise("tasks:document:refused")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model_name=offline", "tasks: document needs a generator that sees pictures; set generator_model to a model with vision=true"),
        ("reader_model={vision: false}", "tasks: document needs a reader that sees pictures; set reader_model to a model with vision=true"),
    ],
)  # fmt: skip
async def test_models_that_do_not_see_are_refused_in_one_line(
    change: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        await synthesise(harbour_report(tmp_path, 1), Sight(1), 1, 1, monkeypatch, change)
    assert str(refused.value) == message
