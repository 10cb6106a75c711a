"""The reader: checks questions by translating and answering them, without ever seeing a proposed answer."""

from agentflow.facts import (
    ClosedBookRequest,
    EvidenceAnswer,
    EvidenceRequest,
    Translation,
    TranslationRequest,
)
from agentflow.models import Model
from agentflow.questions import (
    HiddenAnswer,
    HiddenRequest,
    OtherAnswers,
    OthersRequest,
    ReadingRequest,
    Readings,
)
from agentflow.team._document_messages import hidden_messages, others_messages, reading_messages
from agentflow.team._model_calls import ReadBlob, answer_request, visible_images
from agentflow.team._pool import Role, in_worker
from agentflow.team._question_messages import closed_book_messages, evidence_messages, translation_messages
from agentflow.trajectory import Reply


class Reader(Role):
    """Role that checks questions. A failed model call is a failed reply; only `RunStopped` is raised.

    See docs/team.md.
    """

    def __init__(self, model: Model, read_blob: ReadBlob, *, workers: int) -> None:
        """Create the role.

        :param model: model that reads, preferably of another family than the generator's.
        :param read_blob: reads images for a model with vision.
        :param workers: maximum number of workers.
        """
        super().__init__("readers", workers=workers)
        self._model = model
        self._read_blob = read_blob

    @in_worker
    async def read_hidden(self, request: HiddenRequest) -> Reply[HiddenAnswer]:
        """Answer a question without some of its documents."""
        return await answer_request(
            self._model, request, HiddenAnswer, hidden_messages(request), role="reader"
        )

    @in_worker
    async def read_all(self, request: ReadingRequest) -> Reply[Readings]:
        """Answer questions from documents."""
        return await answer_request(self._model, request, Readings, reading_messages(request), role="reader")

    @in_worker
    async def find_others(self, request: OthersRequest) -> Reply[OtherAnswers]:
        """Look for other answers in the corpus."""
        return await answer_request(
            self._model, request, OtherAnswers, others_messages(request), role="reader"
        )

    @in_worker
    async def translate(self, request: TranslationRequest) -> Reply[Translation]:
        """Translate a question into a program."""
        return await answer_request(
            self._model, request, Translation, translation_messages(request), role="reader"
        )

    @in_worker
    async def read(self, request: EvidenceRequest) -> Reply[EvidenceAnswer]:
        """Answer a question from passages."""
        blobs = (blob for passage in request.passages for blob in passage.images)
        images = await visible_images(self._model, blobs, self._read_blob)
        return await answer_request(
            self._model, request, EvidenceAnswer, evidence_messages(request, images), role="reader"
        )

    @in_worker
    async def recall(self, request: ClosedBookRequest) -> Reply[EvidenceAnswer]:
        """Answer a question from the model's own knowledge."""
        return await answer_request(
            self._model, request, EvidenceAnswer, closed_book_messages(request), role="reader"
        )
