"""Tasks with exact rewards: reverse three words, extract two values as JSON, choose one tool of four, read about a world.

Each prompt shows three examples as turns of a chat: without them a model of this size talks instead of answering. The words of
held-out prompts occur in no prompt of the training.
"""

import json
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from agentflow.scoring import score
from agentflow.trace import Task
from examples.library import Part, part_of

__all__ = ["KINDS", "WORDS", "Exercise", "make_tasks", "messages_of", "reading", "reward_of"]

WORDS = [
    "apple",
    "arrow",
    "autumn",
    "badge",
    "bamboo",
    "banana",
    "barrel",
    "basin",
    "basket",
    "beach",
    "beacon",
    "berry",
    "blanket",
    "boat",
    "bottle",
    "branch",
    "bread",
    "brick",
    "bridge",
    "broom",
    "bucket",
    "butter",
    "button",
    "camel",
    "candle",
    "canyon",
    "castle",
    "cattle",
    "cave",
    "cedar",
    "chain",
    "chair",
    "chalk",
    "cherry",
    "circle",
    "cliff",
    "cloud",
    "clover",
    "coat",
    "comet",
    "copper",
    "coral",
    "corner",
    "cotton",
    "cradle",
    "crane",
    "creek",
    "crown",
    "curtain",
    "desert",
    "diamond",
    "dinner",
    "donkey",
    "dragon",
    "drum",
    "eagle",
    "earth",
    "echo",
    "engine",
    "falcon",
    "farm",
    "feather",
    "fence",
    "fern",
    "field",
    "finger",
    "flame",
    "flute",
    "forest",
    "fountain",
    "fox",
    "frost",
    "garden",
    "garlic",
    "gate",
    "ginger",
    "glass",
    "glove",
    "goat",
    "gold",
    "grape",
    "grass",
    "gravel",
    "hammer",
    "harbor",
    "hawk",
    "helmet",
    "hill",
    "honey",
    "horse",
    "house",
    "ink",
    "island",
    "ivory",
    "jacket",
    "jelly",
    "jungle",
    "kettle",
    "kitten",
    "knife",
    "ladder",
    "lake",
    "lamp",
    "lantern",
    "leaf",
    "lemon",
    "letter",
    "lily",
    "lion",
    "lizard",
    "lobster",
    "lotus",
    "magnet",
    "mango",
    "maple",
    "marble",
    "market",
    "medal",
    "mirror",
    "moon",
    "moss",
    "mountain",
    "mouse",
    "music",
    "needle",
    "nest",
    "night",
    "oak",
    "ocean",
    "olive",
    "onion",
    "orange",
    "orchid",
    "oven",
    "owl",
    "paddle",
    "paint",
    "palace",
    "paper",
    "parrot",
    "path",
    "peach",
    "pearl",
    "pencil",
    "pepper",
    "piano",
    "pillow",
    "pilot",
    "pine",
    "planet",
    "plum",
    "pocket",
    "pond",
    "potato",
    "prairie",
    "puzzle",
    "quartz",
    "rabbit",
    "ribbon",
    "rice",
    "ring",
    "river",
    "rocket",
    "roof",
    "rope",
    "rose",
    "saddle",
    "sail",
    "salmon",
    "salt",
    "sand",
    "school",
    "sea",
    "shadow",
    "sheep",
    "shell",
    "ship",
    "silk",
    "silver",
    "sky",
    "smoke",
    "snake",
    "snow",
    "soap",
    "spider",
    "spoon",
    "spring",
    "star",
    "station",
    "steam",
    "stone",
    "storm",
    "sugar",
    "summer",
    "sun",
    "table",
    "tea",
    "temple",
    "thunder",
    "tiger",
    "toast",
    "tomato",
    "tower",
    "train",
    "tree",
    "tunnel",
    "turtle",
    "umbrella",
    "valley",
    "velvet",
    "village",
    "violet",
    "violin",
    "wagon",
    "walnut",
    "water",
    "wave",
    "whale",
    "wheat",
    "wheel",
    "willow",
    "wind",
    "window",
    "winter",
    "wolf",
    "wood",
    "yarn",
]
_NAMES = [
    "Ada",
    "Alan",
    "Alma",
    "Amir",
    "Anna",
    "Arlo",
    "Bela",
    "Boris",
    "Carla",
    "Cora",
    "Dan",
    "Dora",
    "Edith",
    "Elias",
    "Emma",
    "Erik",
    "Farah",
    "Felix",
    "Flora",
    "Fred",
    "Gina",
    "Gus",
    "Hana",
    "Hugo",
    "Ines",
    "Iris",
    "Ivan",
    "Jack",
    "Jana",
    "Jonas",
    "Julia",
    "Kai",
    "Karl",
    "Kira",
    "Lara",
    "Leo",
    "Lena",
    "Lola",
    "Luca",
    "Mara",
    "Max",
    "Mia",
    "Milo",
    "Mona",
    "Nadia",
    "Nils",
    "Nina",
    "Noah",
    "Nora",
    "Olga",
    "Omar",
    "Otto",
    "Paul",
    "Petra",
    "Rafa",
    "Rita",
    "Rosa",
    "Ruth",
    "Sam",
    "Sara",
    "Sina",
    "Tara",
    "Theo",
    "Tim",
    "Tom",
    "Uma",
    "Vera",
    "Viktor",
    "Wanda",
    "Yara",
    "Yusuf",
    "Zoe",
]
_CITIES = [
    "Athens",
    "Basel",
    "Bergen",
    "Berlin",
    "Bonn",
    "Boston",
    "Cairo",
    "Chicago",
    "Cologne",
    "Cork",
    "Dallas",
    "Delhi",
    "Denver",
    "Dublin",
    "Florence",
    "Geneva",
    "Genoa",
    "Ghent",
    "Hamburg",
    "Havana",
    "Helsinki",
    "Kyoto",
    "Lagos",
    "Leeds",
    "Lima",
    "Lisbon",
    "London",
    "Lyon",
    "Madrid",
    "Miami",
    "Milan",
    "Munich",
    "Naples",
    "Nice",
    "Oslo",
    "Oxford",
    "Paris",
    "Perth",
    "Porto",
    "Prague",
    "Quito",
    "Riga",
    "Rome",
    "Seoul",
    "Seville",
    "Sofia",
    "Sydney",
    "Tampa",
    "Tokyo",
    "Toronto",
    "Turin",
    "Venice",
    "Vienna",
    "Warsaw",
    "York",
    "Zurich",
]
_SHIPS = 4
"""Number of ships in a world."""
_NUMBERS = [str(number) for number in range(12, 99)]
_LANGUAGES = [
    "Danish",
    "Dutch",
    "French",
    "German",
    "Greek",
    "Hindi",
    "Italian",
    "Polish",
    "Spanish",
    "Turkish",
]
_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_TOOLS = "weather(city), translate(text), calculator(expression), calendar(event)"
_REQUESTS = {
    "weather": [
        "Will it rain in {city} on {day}?",
        "How warm is it in {city} today?",
        "Do I need an umbrella in {city}?",
        "Is {city} windy on {day}?",
    ],
    "translate": [
        "How do you say '{word}' in {language}?",
        "What is the {language} word for {word}?",
        "Put 'the {word} is here' into {language}.",
        "Say '{word}' in {language}, please.",
    ],
    "calculator": [
        "What is {number} times {other}?",
        "Add {number} and {other}.",
        "How much is {number} minus {other}?",
        "Divide {number} by {other}.",
    ],
    "calendar": [
        "Remind me to call {name} on {day}.",
        "Book a meeting with {name} on {day}.",
        "Put dinner with {name} on {day} in my plan.",
        "Move my talk with {name} to {day}.",
    ],
}


class Exercise(NamedTuple):
    """A kind of task of the example."""

    system: str
    """Instruction for the whole conversation; empty: none."""
    make: Callable[[Callable[[Sequence[str]], str], Random], tuple[str, str, str]]
    """Makes a question, its answer and its class, from a function that draws a word of a part."""
    shots: Sequence[tuple[str, str]]
    """Examples, shown as turns."""
    wording: str = "{}"
    """Text of a turn with a question."""


def _reverse(draw: Callable[[Sequence[str]], str], _random: Random) -> tuple[str, str, str]:
    words: list[str] = []
    while len(words) < 3:
        word = draw(WORDS)
        if word not in words:
            words.append(word)
    return " ".join(words), " ".join(reversed(words)), ""


def _extract(draw: Callable[[Sequence[str]], str], random: Random) -> tuple[str, str, str]:
    buyer, seller, thing, price = draw(_NAMES), draw(_NAMES), draw(WORDS), draw(_NUMBERS)
    text = random.choice(
        [
            f"{buyer} bought a {thing} from {seller} for {price} dollars.",
            f"{seller} sold a {thing} to {buyer}, who paid {price} dollars.",
            f"For {price} dollars, {buyer} got the {thing} of {seller}.",
            f"The {thing} of {seller} went to {buyer} for {price} dollars.",
        ]
    )
    return text, json.dumps({"buyer": buyer, "price": int(price)}), ""


def _choose(draw: Callable[[Sequence[str]], str], random: Random) -> tuple[str, str, str]:
    tool = random.choice(sorted(_REQUESTS))
    request = random.choice(_REQUESTS[tool]).format(
        city=draw(_CITIES),
        day=random.choice(_DAYS),
        word=draw(WORDS),
        language=random.choice(_LANGUAGES),
        number=draw(_NUMBERS),
        other=draw(_NUMBERS),
        name=draw(_NAMES),
    )
    return request, tool, tool


def _read(draw: Callable[[Sequence[str]], str], random: Random) -> tuple[str, str, str]:
    """Make a world of four ships, its documents, and a question that needs two of them."""

    def distinct(words: Sequence[str]) -> list[str]:
        drawn: dict[str, None] = {}
        while len(drawn) < _SHIPS:
            drawn[draw(words)] = None
        return list(drawn)

    ships, towns, mayors = [word.title() for word in distinct(WORDS)], distinct(_CITIES), distinct(_NAMES)
    years = random.sample(range(1800, 2000), _SHIPS)
    documents = [
        f"{ship}: the {ship} is a ship that was built in {year}. Its home port is {town}."
        for ship, year, town in zip(ships, years, towns, strict=True)
    ] + [f"{town}: a port. Its mayor is {mayor}." for town, mayor in zip(towns, mayors, strict=True)]
    random.shuffle(documents)
    first, second = random.sample(range(_SHIPS), 2)
    earlier = min(first, second, key=lambda index: years[index])
    kind, question, answer = random.choice(
        [
            ("chain", f"Who is the mayor of the home port of the {ships[first]}?", mayors[first]),
            ("compare", f"Which was built first, the {ships[first]} or the {ships[second]}?", ships[earlier]),
            (
                "year",
                f"When was the ship built whose home port has {mayors[first]} as its mayor?",
                str(years[first]),
            ),
            (
                "list",
                f"Which are the home ports of the {ships[first]} and the {ships[second]}?",
                f"{towns[first]} and {towns[second]}",
            ),
        ]
    )
    return reading(documents, question), answer, kind


def reading(documents: Sequence[str], question: str) -> str:
    """Return a question below the documents that answer it."""
    return "\n".join([*documents, "", f"Question: {question}"])


KINDS = {
    "reverse": Exercise(
        "",
        _reverse,
        [
            ("apple river stone", "stone river apple"),
            ("green small house", "house small green"),
            ("sun dog table", "table dog sun"),
        ],
        "Reverse the order of these words: {}",
    ),
    "json": Exercise(
        'Extract the buyer and the price as JSON with the keys "buyer" and "price". Reply with the JSON only.',
        _extract,
        [
            ("Pedro bought a hat from Lin for 11 dollars.", '{"buyer": "Pedro", "price": 11}'),
            ("Greta sold a book to Ravi, who paid 9 dollars.", '{"buyer": "Ravi", "price": 9}'),
            ("For 10 dollars, Lin got the cheese of Pedro.", '{"buyer": "Lin", "price": 10}'),
        ],
    ),
    "tool": Exercise(
        f"Choose the tool that answers the request: {_TOOLS}. Reply with the name of the tool only.",
        _choose,
        [
            ("Will it snow in Minsk?", "weather"),
            ("What is 7 plus 5?", "calculator"),
            ("How do you say 'hat' in Swedish?", "translate"),
        ],
    ),
    "read": Exercise(
        "Answer the question from the documents, in as few words as possible.",
        _read,
        [
            (
                reading(["Gdansk: a port. Its mayor is Ewa."], "Who is the mayor of Gdansk?"),
                "Ewa",
            ),
            (
                reading(
                    ["Heron: the Heron was built in 1850.", "Otter: the Otter was built in 1841."],
                    "Which was built first, the Heron or the Otter?",
                ),
                "Otter",
            ),
            (
                reading(
                    ["Crow: the Crow has its home port in Cadiz.", "Cadiz: a port. Its mayor is Luis."],
                    "Who is the mayor of the home port of the Crow?",
                ),
                "Luis",
            ),
        ],
    ),
}


def make_tasks(kind: str, part: Part, count: int, seed: int) -> list[Task]:
    """Make tasks of a part; held-out ones share no word, name, city or number with the training."""
    random = Random(f"{kind} {part} {seed}")
    tasks: list[Task] = []

    def draw(words: Sequence[str]) -> str:
        return random.choice([word for word in words if part_of(word) == part])

    for index in range(count):
        question, answer, group = KINDS[kind].make(draw, random)
        metadata = {"class": group} if group else {}
        tasks.append(
            Task(
                index=index,
                id=f"{kind}-{part}-{index}",
                question=question,
                references=(answer,),
                metadata={"kind": kind, **metadata},
            )
        )
    return tasks


def messages_of(task: Task, *, shots: int = 3) -> list[dict[str, str]]:
    """Return the conversation that asks for the answer."""
    kind = KINDS[str(task.metadata["kind"])]
    messages = [{"role": "system", "content": kind.system}] if kind.system else []
    for question, answer in kind.shots[:shots]:
        messages += [
            {"role": "user", "content": kind.wording.format(question)},
            {"role": "assistant", "content": answer},
        ]
    return [*messages, {"role": "user", "content": kind.wording.format(task.question)}]


def reward_of(answer: str, task: Task) -> float:
    """Return 1.0 for the exact answer, otherwise 0.0; JSON is compared by its values, what was read by its words (F1)."""
    expected = task.references[0]
    if task.metadata["kind"] == "read":
        return score("f1_score", answer, task.references)
    if task.metadata["kind"] == "json":
        try:
            return float(json.loads(answer) == json.loads(expected))
        except ValueError:
            return 0.0
    return float(re.sub(r"\s+", " ", answer).strip() == expected)
