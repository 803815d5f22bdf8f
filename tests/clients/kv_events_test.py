"""KV events, read by pyzmq and msgpack as routers read them: what they tell is what the prefix cache holds.

    python3 tests/clients/kv_events_test.py MLXCEL FIXTURES [CASE...]

FIXTURES is the folder of tests/fixtures.
"""
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from server import Server  # noqa: E402

try:
    import msgpack
    import zmq
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

PAGE = 16
END = 2**64 - 1


def post(url, path, **body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)


def cached_tokens(url, ids, max_tokens=1):
    """How many tokens of a prompt were found in the prefix cache."""
    usage = post(url, "/v1/completions", prompt=ids, max_tokens=max_tokens, temperature=0, ignore_eos=True)["usage"]
    assert usage["prompt_tokens"] == len(ids)
    return usage["prompt_tokens_details"]["cached_tokens"]


def chain(before, ids):
    """The hash of all tokens up to the end of a page, from that of the tokens before it: docs/kv-events.md."""
    mask = 2**64 - 1
    for token in ids:
        before = (before + 0x9E3779B97F4A7C15 + token) & mask
        before = ((before ^ before >> 30) * 0xBF58476D1CE4E5B9) & mask
        before = ((before ^ before >> 27) * 0x94D049BB133111EB) & mask
        before ^= before >> 31
    return before


class Router:
    """What a router knows of one replica. Each event is checked against what it must know already."""

    def __init__(self):
        self.blocks = {}  # hash -> (parent, tokens)
        self.children = {}  # hash -> number of blocks that continue it
        self.stored = self.removed = self.cleared = 0

    def add(self, payload):
        ts, events, rank = msgpack.unpackb(payload)
        assert abs(ts - time.time()) < 3600 and rank == 0 and events, (ts, rank)
        for event in events:
            getattr(self, event[0])(*event[1:])

    def BlockStored(self, hashes, parent, tokens, size, lora_id, medium, lora_name):
        assert size == PAGE and len(tokens) == PAGE * len(hashes) and (lora_id, medium, lora_name) == (None, "GPU", None)
        for i, block in enumerate(hashes):
            ids = tuple(tokens[i * PAGE:(i + 1) * PAGE])
            assert block not in self.blocks, "a block was stored twice"
            assert parent is None or parent in self.blocks, "a block's parent is unknown"
            assert block == chain(parent or 0, ids), "another hash than docs/kv-events.md describes"
            self.blocks[block] = (parent, ids)
            self.children[parent] = self.children.get(parent, 0) + 1
            parent = block
        self.stored += len(hashes)

    def BlockRemoved(self, hashes, medium):
        assert medium == "GPU"
        for block in hashes:
            assert not self.children.get(block), "a block was removed before those that continue it"
            parent, _ = self.blocks.pop(block)
            self.children[parent] -= 1
        self.removed += len(hashes)

    def AllBlocksCleared(self):
        self.blocks, self.children = {}, {}
        self.cleared += 1

    def known(self, ids):
        """Tokens of |ids| in blocks that the replica holds, as a router counts them."""
        count, before = 0, 0
        while count + PAGE <= len(ids):
            before = chain(before, ids[count:count + PAGE])
            if before not in self.blocks:
                break
            count += PAGE
        return count


class Replica:
    """A server with its two sockets."""

    def __init__(self, mlxcel, model, *flags, topic=None):
        with socket.create_server(("127.0.0.1", 0)) as a, socket.create_server(("127.0.0.1", 0)) as b:
            self.events, self.replays = (f"tcp://127.0.0.1:{s.getsockname()[1]}" for s in (a, b))
        topics = ["--kv-events-topic", topic] if topic else []
        self.server = Server(mlxcel, model, "--device", "cpu", "-t", "2", "--served-model-name", "small", "--kv-events", self.events,
                             "--kv-events-replay", self.replays, *topics, *flags)
        self.url = self.server.url
        self.context = zmq.Context()
        self.dealer = self.context.socket(zmq.DEALER)
        self.dealer.connect(self.replays)

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.context.destroy(linger=0)
        self.server.__exit__(*failure)

    def subscribe(self, topic="kv@"):
        """A subscriber that gets all further events. PUB sends nothing to one whose subscription has not arrived: stores new blocks until they come."""
        events = self.context.socket(zmq.SUB)
        events.set_hwm(0)
        events.connect(self.events)
        events.setsockopt_string(zmq.SUBSCRIBE, topic)
        for _ in range(100):
            cached_tokens(self.url, [random.randrange(3, 300) for _ in range(PAGE + 1)])
            if events.poll(100):
                return events
        raise AssertionError("no event arrived")

    def replay(self, start, dealer=None):
        """[(sequence number, payload)] of what the replica still has from |start| on."""
        dealer, found = dealer or self.dealer, []
        dealer.send_multipart([b"", start.to_bytes(8, "big")])
        while True:
            assert dealer.poll(30000), "a replay has no end"
            empty, number, payload = dealer.recv_multipart()
            assert empty == b"" and len(number) == 8
            if int.from_bytes(number, "big") == END:
                assert payload == b""
                return found
            found.append((int.from_bytes(number, "big"), payload))


def receive(events, until=None, milliseconds=1000):
    """[(sequence number, payload)] that have arrived, up to the number |until|."""
    found = []
    while (not found or found[-1][0] != until) and events.poll(milliseconds):
        topic, number, payload = events.recv_multipart()
        assert topic.startswith(b"kv@") and topic.endswith(b"@small") and len(topic.split(b"@")) == 3, topic
        found.append((int.from_bytes(number, "big"), payload))
    return found


class Prompts:
    """Prompts of one seed: trees of beginnings that they share."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.all = [[]]

    def next(self, most=400):
        base = self.random.choice(self.all[-40:])
        cut = self.random.randrange(len(base) + 1)
        length = min(cut + self.random.randrange(1, 150), most)
        prompt = base[:cut] + [self.random.randrange(3, 300) for _ in range(max(1, length - cut))]
        self.all.append(prompt)
        return prompt


def load(url, prompts, clients, each):
    """Runs |clients| x |each| requests, |clients| at a time."""
    work, problems = [[prompts.next() for _ in range(each)] for _ in range(clients)], []

    def client(mine):
        try:
            for prompt in mine:
                cached_tokens(url, prompt, max_tokens=1 + len(prompt) % 40)
        except Exception as error:
            problems.append(repr(error))

    threads = [threading.Thread(target=client, args=(mine,)) for mine in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems, problems[:3]


def numbers(batches):
    return [number for number, _ in batches]


def check_beliefs(replica, router, prompts, exact=True):
    """The replica finds of each prompt what the router believes. A request stores and removes blocks itself, so they are read after each. Returns found tokens."""
    found = 0
    at = replica.replay(0)[-1][0] + 1
    for prompt in prompts:
        known = min(router.known(prompt), (len(prompt) - 1) // PAGE * PAGE)
        tokens = cached_tokens(replica.url, prompt) // PAGE * PAGE
        assert tokens == known if exact else tokens <= known, f"{tokens} tokens of {len(prompt)} were found, and the router believes {known}"
        found += tokens
        for number, payload in replica.replay(at):
            router.add(payload)
            at = number + 1
    return found


def events_tell_what_the_pool_holds_after_a_load_with_evictions(mlxcel, fixtures):
    with Replica(mlxcel, os.path.join(fixtures, "tiny-llama"), "-c", "512", "--parallel", "8", "--memory", "1M") as replica:
        events = replica.subscribe()
        load(replica.url, prompts := Prompts(1), clients=16, each=25)
        kept = replica.replay(0)
        live = receive(events, kept[-1][0])
        assert kept[-len(live):] == live and numbers(kept) == list(range(len(kept))), "the replay differs from what was published"
        router = Router()
        for _, payload in kept:
            router.add(payload)
        assert router.removed > 500, f"only {router.removed} of {router.stored} blocks were removed: too little load"
        asked = prompts.all[1:]
        random.Random(2).shuffle(asked)
        found = check_beliefs(replica, router, [asked[i] + ([5] * (i % 3) * 9) for i in range(150)])
        assert found > 1000, found
        print(f"  {len(kept)} batches: {router.stored} blocks stored, {router.removed} removed, {len(router.blocks)} there; {found} tokens found as believed")


def a_late_subscriber_and_one_that_comes_back_ask_for_what_they_missed(mlxcel, fixtures):
    with Replica(mlxcel, os.path.join(fixtures, "tiny-llama"), "-c", "512", "--parallel", "8") as replica:
        load(replica.url, prompts := Prompts(3), clients=4, each=5)
        events = replica.subscribe()  # late
        first = receive(events, milliseconds=300)
        assert first[0][0] > 0
        missed = [batch for batch in replica.replay(0) if batch[0] < first[0][0]]
        assert numbers(missed) == list(range(first[0][0]))
        events.close()
        load(replica.url, prompts, clients=4, each=5)
        events = replica.subscribe()
        last = receive(events, milliseconds=300)
        assert last[0][0] > first[-1][0] + 1, "nothing was missed"
        gap = [batch for batch in replica.replay(first[-1][0] + 1) if batch[0] < last[0][0]]
        router = Router()
        everything = missed + first + gap + last
        assert numbers(everything) == list(range(len(everything)))
        for _, payload in everything:
            router.add(payload)
        assert check_beliefs(replica, router, prompts.all[1::3]) > 100
        # A REQ socket gets the first message of its reply, as vLLM's example does.
        request = replica.context.socket(zmq.REQ)
        request.connect(replica.replays)
        request.send((3).to_bytes(8, "big"))
        assert request.recv_multipart()[0] == (3).to_bytes(8, "big")
        assert replica.replay(10**9) == []


def other_topics_get_nothing_and_bad_peers_are_sent_away(mlxcel, fixtures):
    with Replica(mlxcel, os.path.join(fixtures, "tiny-llama"), topic="kv@pod-7@small") as replica:
        other = replica.context.socket(zmq.SUB)
        other.connect(replica.events)
        other.setsockopt_string(zmq.SUBSCRIBE, "kv@pod-8@")
        wrong = replica.context.socket(zmq.REQ)  # its type does not fit
        wrong.connect(replica.events)
        wrong.send(b"x" * 8)
        host, port = replica.events.split("//")[1].split(":")
        with socket.create_connection((host, int(port)), 10) as web:
            web.sendall(b"GET / HTTP/1.1\r\n\r\n")
            while web.recv(1000):
                pass  # the greeting, and the end of the connection
        events = replica.subscribe("kv@pod-7@small")
        again = replica.context.socket(zmq.SUB)
        again.setsockopt(zmq.HEARTBEAT_IVL, 50)
        again.setsockopt(zmq.HEARTBEAT_TIMEOUT, 500)
        again.connect(replica.events)
        again.setsockopt(zmq.SUBSCRIBE, b"")
        time.sleep(1)  # many heartbeats; without answers, the connection would end
        load(replica.url, Prompts(5), clients=2, each=5)
        last = replica.replay(0)[-1][0]
        assert receive(again, last)[-1][0] == last
        assert receive(events, last)[-1][0] == last and not other.poll(0)
        events.setsockopt(zmq.UNSUBSCRIBE, b"kv@pod-7@small")
        time.sleep(0.3)
        load(replica.url, Prompts(6), clients=1, each=3)
        assert receive(again, replica.replay(0)[-1][0]) and not events.poll(200)


def a_model_that_sleeps_or_is_unloaded_holds_nothing(mlxcel, fixtures):
    with Replica(mlxcel, os.path.join(fixtures, "tiny-llama"), "--enable-sleep-mode") as replica:
        for level in (1, 2):
            load(replica.url, prompts := Prompts(level), clients=1, each=5)
            router = Router()
            for _, payload in replica.replay(0):
                router.add(payload)
            assert router.blocks and router.cleared == level - 1
            post(replica.url, f"/sleep?level={level}")
            for _, payload in replica.replay(len(replica.replay(0)) - 1):
                router.add(payload)
            assert not router.blocks and router.cleared == level, router.cleared
            post(replica.url, "/wake_up")
            assert check_beliefs(replica, router, prompts.all[1:] * 2) > 100


def what_other_kinds_of_models_hold_is_at_most_what_a_router_believes(mlxcel, fixtures):
    # Recurrent layers go on from snapshots only, and layers with a window need its pages. An encoder has no cache.
    for name in ("lfm2", "gemma3"):
        with tempfile.TemporaryDirectory() as folder:
            for path in [*(os.path.join(fixtures, name, file) for file in os.listdir(os.path.join(fixtures, name))), os.path.join(fixtures, "tiny-llama/tokenizer.json")]:
                os.symlink(os.path.abspath(path), os.path.join(folder, os.path.basename(path)))
            with Replica(mlxcel, folder, "-c", "512") as replica:
                load(replica.url, prompts := Prompts(8), clients=2, each=6)
                router = Router()
                for _, payload in replica.replay(0):
                    router.add(payload)
                found = check_beliefs(replica, router, prompts.all[1:] * 2, exact=False)
                print(f"  {name}: {found} tokens found")
                assert router.stored and found > 100
    with Replica(mlxcel, os.path.join(fixtures, "embedders/bert")) as replica:
        assert len(post(replica.url, "/v1/embeddings", input=["a b c d e f g h i j k l m n o p q r s t u v"] * 2)["data"]) == 2
        assert replica.replay(0) == []


def wrong_options_are_refused(mlxcel, fixtures):
    model = os.path.join(fixtures, "tiny-llama")
    for flags, message in ((["--kv-events-topic", "x"], "need --kv-events"), ([model, "--kv-events", "tcp://*:0"], "needs exactly one model"),
                           (["--kv-events", "tcp://*:0", "--engines", "2"], "needs one engine"),
                           (["--kv-events", "udp://*:5557"], "is no endpoint"), (["--kv-events", "tcp://*:99999"], "cannot listen|is no endpoint"),
                           (["--kv-events", "tcp://192.0.2.1:5557"], "cannot listen")):
        done = subprocess.run([mlxcel, "serve", model, "--port", "0", *flags], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode and re.search(message, done.stderr), (flags, done.stderr)


CASES = [events_tell_what_the_pool_holds_after_a_load_with_evictions, a_late_subscriber_and_one_that_comes_back_ask_for_what_they_missed,
         other_topics_get_nothing_and_bad_peers_are_sent_away, a_model_that_sleeps_or_is_unloaded_holds_nothing,
         what_other_kinds_of_models_hold_is_at_most_what_a_router_believes, wrong_options_are_refused]


def main():
    mlxcel, fixtures, wanted = sys.argv[1], sys.argv[2], sys.argv[3:]
    failed = 0
    for case in CASES:
        if wanted and case.__name__ not in wanted:
            continue
        print(case.__name__, flush=True)
        try:
            case(mlxcel, fixtures)
        except Exception:
            print("  " + traceback.format_exc().replace("\n", "\n  ") + "FAILED")
            failed += 1
    print(f"{failed} failed")
    sys.exit(1 if failed else 0)


main()
