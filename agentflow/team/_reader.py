"""The reader: checks questions by answering them, without ever seeing a proposed answer before."""

from agentflow.models import Model
from agentflow.questions import (
    HiddenAnswer,
    HiddenRequest,
    OtherAnswers,
    OthersRequest,
    ReadingRequest,
    Readings,
    Recalled,
    RecallRequest,
    ShownDocument,
)
from agentflow.team._messages import (
    hidden_messages,
    others_messages,
    reading_messages,
    recall_messages,
)
from agentflow.team._pool import Role, answer_request, in_worker
from agentflow.team._rendering import Images, visible_images
from agentflow.trace import BlobStore, Reply


class Reader(Role):
    """Role that checks questions. A failed model call is a failed reply; only `RunStopped` is raised.

    See docs/team.md.
    """

    def __init__(self, model: Model, blobs: BlobStore, *, learner: Model | None = None, workers: int) -> None:
        """Create the role.

        :param model: model that reads, preferably of another family than the generator's.
        :param blobs: store of images, for a model with vision.
        :param learner: model that answers from memory; by default the one that reads.
        :param workers: maximum number of workers.
        """
        super().__init__("readers", workers=workers)
        self._model = model
        self._learner = learner or model
        self._blobs = blobs

    @in_worker
    async def read_hidden(self, request: HiddenRequest) -> Reply[HiddenAnswer]:
        """Answer a question without some of its documents."""
        messages = hidden_messages(request, await self._images(request.documents))
        return await answer_request(self._model, request, HiddenAnswer, messages, role="reader")

    @in_worker
    async def read_all(self, request: ReadingRequest) -> Reply[Readings]:
        """Answer questions from documents."""
        messages = reading_messages(request, await self._images(request.documents))
        return await answer_request(self._model, request, Readings, messages, role="reader")

    @in_worker
    async def find_others(self, request: OthersRequest) -> Reply[OtherAnswers]:
        """Look for other answers in the corpus."""
        messages = others_messages(request, await self._images(request.documents))
        return await answer_request(self._model, request, OtherAnswers, messages, role="reader")

    @in_worker
    async def recall(self, request: RecallRequest) -> Reply[Recalled]:
        """Answer a question from the model's own knowledge."""
        return await answer_request(
            self._learner, request, Recalled, recall_messages(request), role="learner"
        )

    async def _images(self, documents: tuple[ShownDocument, ...]) -> Images:
        return await visible_images(
            self._model, (blob for each in documents for blob in each.images), self._blobs
        )
