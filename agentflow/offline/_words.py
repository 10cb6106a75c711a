"""Words with special forms: verbs, and the agents of their actions."""


def listed(words: str) -> tuple[str, ...]:
    """Split a text into its words."""
    return tuple(words.split())


def paired(words: str) -> dict[str, str]:
    """Split a text into pairs of words such as `wrote:write`."""
    return {first: second for first, _, second in (pair.partition(":") for pair in words.split())}


AGENTS = paired(
    "built:builder cast:maker composed:composer created:creator designed:designer developed:developer "
    "directed:director discovered:discoverer edited:editor established:founder found:finder founded:founder "
    "invented:inventor made:maker owned:owner painted:painter produced:producer translated:translator "
    "written:author"
)
"""Agent nouns by past participle: `written` -> `author`."""

KINDS = frozenset(
    listed(
        "association battle charter council race roll treaty book bridge building city club company country film guild house institute island machine museum "
        "lighthouse captain clock garden mountain lake canal library observatory harbour compass novel organisation organization poem river ship society song station team town university vessel village work"
    )
)
"""Class nouns: in a passage about a town, `the town` is that town."""

STOP = frozenset(
    listed(
        "a about above after again all also although an and another any are as at be because been before "
        "began being below between both but by came can come could did do does during each either every "
        "explore few first for from get had has have he her here him his how i if in into is it its just last "
        "later like made make many may me more most much must my near never no nor not now of off often on "
        "once one only or other our out over own said same see seen shall she should since so some still such "
        "than that the their them then there these they this those three though through to too two under "
        "until up upon used very was we were what when where whether which while who whom whose why will with "
        "within without would yet you your"
    )
)
"""Stop words."""

PERSONS = frozenset(
    listed(
        "architect author astronomer ambassador botanist builder captain chairman chancellor chief commander "
        "composer conductor creator designer developer director discoverer editor emperor engineer explorer "
        "founder governor head inventor keeper king leader librarian maker manager master mayor minister "
        "negotiator owner painter patron pilot poet president principal producer queen rector ruler sculptor "
        "secretary successor teacher translator winner writer"
    )
)
"""Roles that questions ask for with `who`."""

_IRREGULAR_STEMS = paired(
    "became:become began:begin bought:buy broke:break brought:bring built:build came:come cast:cast "
    "cost:cost fell:fall fought:fight gave:give grew:grow had:have has:have held:hold kept:keep laid:lay "
    "led:lead left:leave lost:lose made:make met:meet paid:pay ran:run rose:rise sank:sink sold:sell "
    "spent:spend stood:stand taught:teach took:take won:win wrote:write described:describe "
    "measured:measure served:serve died:die saved:save received:receive produced:produce settled:settle "
    "arrived:arrive retired:retire closed:close merged:merge ceased:cease"
)
_PARTICIPLES = listed(
    "born begun broken built cast cut dug drawn fought found given held hung kept laid lost made opened put "
    "read sealed set shown sold spun sunk sung taken taught won written"
)
DONE = rf"(?:{'|'.join(_PARTICIPLES)}|[a-z]{{2,}}ed)"
"""Pattern of past participles."""
_PASTS = paired("drawn:drew given:gave shown:showed sung:sang taken:took written:wrote")

_PRESENT = listed(
    "carries contains costs counts covers earns employs gives grows has holds houses joins keeps lasts "
    "lies makes measures needs occupies owns pays produces publishes reaches receives rises runs saves "
    "sells serves spans stands strikes takes teaches treats weighs wins"
)
_PAST = listed(
    "arrived bought broke brought came ceased closed fell fought laid led merged met ran retired settled spent "
    "became began carried charted contained cost counted died described drew earned employed failed gave "
    "grew had held kept lasted left made measured needed opened owned paid planted produced published "
    "reached received rose sank saved served sold stood took taught treated weighed won wrote"
)
VERBS = frozenset([*_PRESENT, *_PAST, "was", "were", "is", "are"])
"""Known verbs, which end a subject of several words."""


def past_of(participle: str) -> str:
    """Return the simple past of a past participle, `written` -> `wrote`; most are equal."""
    return _PASTS.get(participle, participle)


def stem_of(verb: str) -> tuple[str, str] | None:
    """Return auxiliary and stem of a verb in a question, `carries` -> `does`, `carry`; `None` for an unknown verb."""
    if verb in _PAST:
        return "did", _IRREGULAR_STEMS.get(verb, _unpast(verb))
    if verb == "has":
        return "does", "have"
    if verb in _PRESENT:
        return "does", _unthird(verb)
    return None


def _unpast(verb: str) -> str:
    if verb.endswith("ied"):
        return f"{verb[:-3]}y"
    return verb.removesuffix("ed")


def _unthird(verb: str) -> str:
    if verb == "lies":
        return "lie"
    if verb.endswith("ies"):
        return f"{verb[:-3]}y"
    if verb.endswith(("shes", "ches", "sses")):
        return verb[:-2]
    return verb[:-1]


MAKERS = {past_of(verb): agent for verb, agent in AGENTS.items()}
"""Agent nouns by simple past: `wrote` -> `author`."""

EVENTS = paired(
    "born:birth broken_up:breaking_up built:construction burned:burning cast:casting climbed:ascent "
    "completed:completion composed:composition created:creation designed:design discovered:discovery died:death "
    "began:start begun:start established:establishment first_climbed:first_ascent founded:foundation invented:invention "
    "launched:launch lost:loss made:making opened:opening published:publication sank:sinking sealed:sealing "
    "signed:signing sold:sale first_held:first_celebration settled:settlement failed:failure written:writing"
)
"""Nouns of events by past participle or simple past, with `_` for spaces: `founded` -> `foundation`."""

PLACES = {
    "born": "birthplace",
    "built": "place of construction",
    "kept": "location",
    "sold": "place of sale",
    "sorted": "place of sorting",
    "signed": "place of signing",
    "buried": "burial place",
}
"""Relations to a place by past participle: `born` -> `birthplace`."""

EXTENTS = paired("tall:height high:height long:length wide:width deep:depth old:age")
"""Relations by adjective: `tall` -> `height`."""

MEASURES = paired("measure:length cost:price reach:range")
"""Relations by the stem of a verb with a quantity."""

HOLDING = frozenset(listed("have carry hold employ count keep contain grow sell strike need house teach"))
"""Stems of verbs whose subject has as many things as they say."""

WHOLES = paired("tower:lighthouse building:hall canal:waterway")
"""Classes whose parts stand for the whole: the tower of a lighthouse is the lighthouse."""

ROLES = frozenset(listed("capital centre seat home part end main largest end site name"))
"""Nouns after `is the` that are no class."""

VAGUE = frozenset(listed("different new other main big small great"))
"""Words that say little about the things counted."""


def year_of(verb: str) -> str:
    """Return the relation to the year of an event, `founded` -> `year of foundation`; empty for an unknown verb."""
    event = EVENTS.get(verb.replace(" ", "_"), "")
    return f"year of {event.replace('_', ' ')}" if event else ""


COUNTS = paired("two:2 three:3 four:4 five:5 six:6 seven:7 eight:8 nine:9 ten:10 eleven:11 twelve:12")
"""Numbers by their words."""

DONE_BY = {participle: past for participle, past in _PASTS.items() if participle in AGENTS}
"""Simple past of the participles of agents, where it differs."""
