"""MAPs on the wire: bytes and CPU of an endpoint in five forms, and interest-only delivery.

Population: 56 participants with 79 endpoints and 8 with 630, topics drawn from 2,000 names of a
fleet of robots, a type for each kind of topic, four orders.  Forms, in bytes per endpoint with
everything (participants included):

* `rtps_parameter_list`: what DDS sends for one endpoint, laid out as RTPS has it;
* `zlib_per_endpoint`: the same, each deflated;
* `zlib_whole`: all of a participant's deflated together;
* `dictionary`: the MAP's tables and columns, as `map_codec` has them before deflate;
* ours: `map_codec`.

`flat_names` have `_` in the place of `/`.

`delivery`: what one participant must be told of all others, in kB: complete compact MAPs, or, with
interest-only delivery, all summaries, its ASKs, and the details of what it matches.  Counted from
the encoded forms, each told once; mean over participants, of some of them in the large case.
"""

import struct
import zlib
from collections.abc import Callable
from typing import Any

from harness import arguments, interleave, report, summarise

from orderwire.discovery.map_codec import decode, decode_map, encode_map, lookup, plain_form
from orderwire.discovery.maps import EndpointData, EndpointKind, Map, ParticipantData
from orderwire.discovery.messages import MapRecord
from orderwire.discovery.summaries import (
    HASH_BYTES,
    Interests,
    Offer,
    encode_summary,
    summary_of,
)
from orderwire.kernel import stream
from orderwire.sim.population import Population, TopicSettings, case, draw_topics, uniform

DEVICES = (
    "camera_front", "camera_rear", "camera_left", "camera_right", "lidar_top", "lidar_rear", "imu",
    "gnss", "arm_left", "arm_right", "gripper", "base", "battery", "planner", "controller",
    "localization", "perception", "tracker", "mapper", "supervisor",
)  # fmt: skip
TOPICS = (
    ("image_raw", "sensor_msgs::msg::dds_::Image_"),
    ("camera_info", "sensor_msgs::msg::dds_::CameraInfo_"),
    ("points", "sensor_msgs::msg::dds_::PointCloud2_"),
    ("data", "sensor_msgs::msg::dds_::Imu_"),
    ("fix", "sensor_msgs::msg::dds_::NavSatFix_"),
    ("joint_states", "sensor_msgs::msg::dds_::JointState_"),
    ("cmd_vel", "geometry_msgs::msg::dds_::Twist_"),
    ("odom", "nav_msgs::msg::dds_::Odometry_"),
    ("path", "nav_msgs::msg::dds_::Path_"),
    ("status", "diagnostic_msgs::msg::dds_::DiagnosticArray_"),
    ("pose", "geometry_msgs::msg::dds_::PoseStamped_"),
    ("enable", "std_msgs::msg::dds_::Bool_"),
    ("text", "std_msgs::msg::dds_::String_"),
)
ORDERS = (
    "unordered(lifetime_ns=None,epsilon_ns=0)",
    "fifo(lifetime_ns=None,epsilon_ns=0)",
    "bounded-jang(lifetime_ns=250000000,epsilon_ns=1000000)",
    "bounded-jang(lifetime_ns=1000000000,epsilon_ns=1000000)",
)
SEED = 1
SAMPLE = 16
"""Participants whose details are counted in the large case."""


def topic_names(count: int, seed: int) -> list[tuple[str, str]]:
    """Return topics and their types, of a fleet of a dozen robots or of as many as needed."""
    robots = max(12, -(-count // (len(DEVICES) * len(TOPICS))))
    every = [
        (f"robot_{robot:02}/{device}/{topic}", type_)
        for robot in range(robots)
        for device in DEVICES
        for topic, type_ in TOPICS
    ]
    stream(seed, "names").shuffle(every)
    return every[:count]


def maps_of(
    population: Population, topics: TopicSettings, seed: int = SEED, separator: str = "/"
) -> list[Map]:
    """Return the MAPs of a population.  One endpoint of ten has another order than its topic."""
    names = topic_names(topics.topics, seed)
    chance = stream(seed, "orders")
    maps = []
    for number, drawn in enumerate(draw_topics(population, topics, seed)):
        participant = ParticipantData(
            f"{chance.getrandbits(128):032x}",
            f"node_{number}",
            (("data", f"192.168.10.{number}:{7400 + number}"),),
        )
        endpoints = []
        for key, (topic, writes) in enumerate(drawn):
            name, type_ = names[topic]
            order = ORDERS[zlib.crc32(name.encode()) % len(ORDERS)]
            if chance.random() < 0.1:
                order = chance.choice(ORDERS)
            endpoints.append(
                EndpointData(
                    key,
                    EndpointKind(writes),
                    name.replace("/", separator),
                    type_,
                    (("order", order),),
                )
            )
        maps.append(Map.of(participant, endpoints))
    return maps


def parameter_list(endpoint: EndpointData) -> bytes:
    """Return an endpoint as DDS tells of it: an RTPS parameter list. [RTPS 9.6.3, table 9.14]

    Parameters that have their default value are left out, as implementations do.
    """
    kind = 3 if endpoint.kind is EndpointKind.WRITER else 4
    reliable = "unordered" not in endpoint.qos[0][1]
    prefix = bytes(range(12))
    entity = struct.pack(">I", endpoint.key << 8 | kind)

    def text(value: str) -> bytes:
        data = value.encode() + b"\x00"
        return struct.pack("<I", len(data)) + data + bytes(-len(data) % 4)

    parameters = [
        (0x0005, text(endpoint.topic)),
        (0x0007, text(endpoint.type)),
        (0x005A, prefix + entity),
        (0x0050, prefix + b"\x00\x00\x01\xc1"),
        (0x0015, b"\x02\x02\x00\x00"),
        (0x0016, b"\x01\x0f\x00\x00"),
        (0x001D, struct.pack("<I", 0)),
        (0x001A, struct.pack("<Iii", 2 if reliable else 1, 0, 100_000_000)),
        (0x001B, struct.pack("<Iii", 0, 0x7FFFFFFF, -1)),
        (0x002B, struct.pack("<ii", 0, 250_000_000)),
        (0x001F, struct.pack("<I", 0)),
    ]
    body = b"".join(struct.pack("<HH", pid, len(value)) + value for pid, value in parameters)
    return b"\x00\x03\x00\x00" + body + b"\x01\x00\x00\x00"


def sizes(maps: list[Map]) -> dict[str, dict[str, float]]:
    """Bytes per endpoint in every form: of all, and of participants on Level 1 and 2."""
    forms: dict[str, Callable[[Map], int]] = {
        "rtps_parameter_list": lambda each: len(b"".join(map(parameter_list, each.endpoints))),
        "zlib_per_endpoint": lambda each: sum(
            len(zlib.compress(parameter_list(endpoint), 9)) for endpoint in each.endpoints
        ),
        "zlib_whole": lambda each: len(
            zlib.compress(b"".join(map(parameter_list, each.endpoints)), 9)
        ),
        "dictionary": lambda each: len(plain_form(encode_map(each))),
        "ours": lambda each: len(encode_map(each)),
    }
    smallest = min(len(each.endpoints) for each in maps)
    groups = {
        "all": maps,
        "level_1": [each for each in maps if len(each.endpoints) == smallest],
        "level_2": [each for each in maps if len(each.endpoints) > smallest],
    }
    return {
        form: {
            group: round(sum(map(size, some)) / sum(len(each.endpoints) for each in some), 1)
            for group, some in groups.items()
        }
        for form, size in forms.items()
    }


def cpu(maps: list[Map], repeats: int) -> dict[str, float]:
    """µs of CPU per endpoint."""
    total = sum(len(each.endpoints) for each in maps)
    records = [MapRecord(1, encode_map(each)) for each in maps]
    lists = [[parameter_list(endpoint) for endpoint in each.endpoints] for each in maps]
    wanted = {maps[0].endpoints[0].topic}

    def run(work: Callable[[], object]) -> Callable[[], int]:
        def units() -> int:
            work()
            return total

        return units

    rounds = interleave(
        {
            "encode": run(lambda: [encode_map(each) for each in maps]),
            "decode": run(lambda: [decode(each) for each in records]),
            "lookup": run(lambda: [lookup(each, wanted.__contains__) for each in records]),
            "zlib_per_endpoint": run(
                lambda: [[zlib.compress(data, 9) for data in each] for each in lists]
            ),
        },
        repeats,
    )
    return {name: summarise(runs).cpu_us_per_unit for name, runs in rounds.items()}


def delivery(population: Population, topics: TopicSettings) -> dict[str, float]:
    """kB that one participant is told, all MAPs or what interests it."""
    maps = maps_of(population, topics)
    summaries = [summary_of(1, each.endpoints, participant=each.participant) for each in maps]
    offers = [Offer(each.endpoints) for each in maps]
    some = range(len(maps)) if len(maps) <= 64 else range(0, len(maps), len(maps) // SAMPLE)
    details = asks = matching = 0
    for mine in some:
        interests = Interests(maps[mine].endpoints)
        for theirs, summary in enumerate(summaries):
            wanted = interests.wanted(summary)
            if theirs == mine or not wanted:
                continue
            found = tuple(offers[theirs].matching(wanted))
            matching += len(found)
            details += len(encode_map(Map(maps[theirs].participant, found)))
            asks += HASH_BYTES * len(wanted.hashes)
    others = len(some) * (len(maps) - 1)
    per_endpoint = sum(len(each.endpoints) for each in maps) / len(maps)
    full = sum(len(encode_map(each)) for each in maps)
    told = sum(len(encode_summary(each)) for each in summaries)
    return {
        "matching_percent": round(100 * matching / (others * per_endpoint), 1),
        "full_kb": round(full / 1e3, 1),
        "summaries_kb": round(told / 1e3, 1),
        "asks_kb": round(asks / len(some) / 1e3, 1),
        "details_kb": round(details / len(some) / 1e3, 1),
        "interest_only/full": round((told + (asks + details) / len(some)) / full, 2),
    }


def main() -> None:
    """Measure and print the result."""
    parser = arguments(__doc__, repeats=5)
    chosen = parser.parse_args()
    population = case("1-1" if chosen.quick else "1-4")
    maps = maps_of(population, TopicSettings())
    assert all(decode_map(encode_map(each)) == each for each in maps)
    bytes_of = sizes(maps)
    flat = sizes(maps_of(population, TopicSettings(), separator="_"))
    times = cpu(maps, 1 if chosen.quick else chosen.repeats)
    cases: dict[str, tuple[Population, TopicSettings]] = {
        "2000 topics": (population, TopicSettings()),
        "2000 topics, Zipf 0.8": (population, TopicSettings(zipf_exponent=0.8)),
        "200 topics": (population, TopicSettings(topics=200)),
        "10000 topics, Zipf 0.8": (population, TopicSettings(topics=10_000, zipf_exponent=0.8)),
    }
    if not chosen.quick:
        cases["1000 participants of 79, 50000 topics"] = (
            uniform(1_000, 79),
            TopicSettings(topics=50_000),
        )
    rivals: dict[str, Any] = {name: {"bytes": found} for name, found in bytes_of.items()}
    ours = rivals.pop("ours")
    for name, us in times.items():
        if name in rivals:
            rivals[name]["encode_cpu_us"] = us
        else:
            ours[f"{name}_cpu_us"] = us
    report(
        "compact_maps",
        ours={
            **ours,
            "flat_names_bytes": flat["ours"],
            "delivery": {name: delivery(*each) for name, each in cases.items()},
        },
        rivals=rivals,
        ratios={name: round(bytes_of["ours"]["all"] / bytes_of[name]["all"], 3) for name in rivals},
        repeats=chosen.repeats,
        as_json=chosen.json,
        quick=chosen.quick,
        endpoints=population.endpoints_total,
    )


if __name__ == "__main__":
    main()
