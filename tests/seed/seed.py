"""The seed's limiters, lock and time series on real servers, as Python 3.

The seed reads the clock and its clients from module scope, formats `{user_id}` without a name and leaves out line
breaks; here both are given, and the rest is as it stands. The helpers that `get_range` calls are those of the time-series
store it was taken from, as published. It reads one JSON request on standard input and writes one
JSON answer.
"""

import hashlib
import json
import sys
from collections import defaultdict
from contextlib import contextmanager
from time import sleep
from zlib import crc32

import pymemcache
import redis


class Locked(Exception):
    pass


class Seed:
    def __init__(self, redis_port, memcached_port):
        self.redis = redis.Redis(port=redis_port)
        self.cache = pymemcache.Client(("127.0.0.1", memcached_port))
        self.now = 0
        self.between_add_and_incr = lambda key: None

    def time(self):
        return self.now

    def incr_and_check_limit(self, user_id, limit):
        key = "{user_id}:{epoch}".format(user_id=user_id, epoch=int(self.time() / 60))
        pipe = self.redis.pipeline()
        pipe.incr(key)
        pipe.expire(key, 60)
        current_rate, _ = pipe.execute()
        return int(current_rate) > limit

    def incr_and_check_limit_memcache(self, user_id, limit):
        key = "{user_id}:{epoch}".format(user_id=user_id, epoch=int(self.time() / 60))
        if self.cache.add(key, 0, 60, noreply=False):
            return False
        self.between_add_and_incr(key)
        current_rate = self.cache.incr(key, 1)
        return current_rate > limit

    @contextmanager
    def lock(self, key, nowait=True):
        while not self.redis.setnx(key, "1"):
            if nowait:
                raise Locked("try again soon!")
            sleep(0.01)
        self.redis.expire(key, 10)
        yield
        self.redis.delete(key)


class Series:
    """Counters in buckets. Times are whole seconds since the epoch."""

    ROLLUPS = [(10, 360), (3600, 168), (86400, 90)]
    VNODES = 64

    def __init__(self, conn):
        self.conn = conn

    def normalize_to_epoch(self, timestamp, rollup):
        return timestamp // rollup * rollup

    def normalize_to_rollup(self, timestamp, rollup):
        return timestamp // rollup

    def get_model_key(self, key):
        if isinstance(key, int):
            return key
        written = repr(key.encode("utf-8"))[1:]
        return hashlib.md5(written.encode("ascii")).hexdigest()

    def make_key(self, model, norm_epoch, model_key):
        if isinstance(model_key, int):
            vnode = model_key % self.VNODES
        else:
            unsigned = crc32(model_key.encode("ascii"))
            signed = unsigned - 2**32 if unsigned >= 2**31 else unsigned
            vnode = signed % self.VNODES
        return "ts:%s:%s:%s" % (model, norm_epoch, vnode)

    def get_optimal_rollup(self, start, end):
        for rollup, samples in self.ROLLUPS:
            if rollup * samples >= end - start:
                return rollup
        return self.ROLLUPS[-1][0]

    def incr(self, model, key, timestamp, count):
        pipe = self.conn.pipeline()
        for rollup, samples in self.ROLLUPS:
            model_key = self.get_model_key(key)
            hash_key = self.make_key(model, self.normalize_to_rollup(timestamp, rollup), model_key)
            pipe.hincrby(hash_key, model_key, count)
            pipe.expireat(hash_key, self.normalize_to_epoch(timestamp, rollup) + rollup * samples)
        pipe.execute()

    def get_range(self, model, keys, start, end, rollup=None):
        if rollup is None:
            rollup = self.get_optimal_rollup(start, end)
        results = []
        timestamp = end
        while timestamp >= start:
            real_epoch = self.normalize_to_epoch(timestamp, rollup)
            norm_epoch = self.normalize_to_rollup(timestamp, rollup)
            for key in keys:
                model_key = self.get_model_key(key)
                hash_key = self.make_key(model, norm_epoch, model_key)
                results.append((real_epoch, key, self.conn.hget(hash_key, model_key)))
            timestamp = timestamp - rollup
        results_by_key = defaultdict(dict)
        for epoch, key, count in results:
            results_by_key[key][epoch] = int(count or 0)
        return {key: sorted(points.items()) for key, points in results_by_key.items()}


def series_incr(seed, request):
    """Each item is [model, key, seconds, count]."""
    series = Series(seed.redis)
    for item in request["items"]:
        series.incr(*item)


def series_get_range(seed, request):
    """Each question is [model, keys, start, end, rollup or null]; a range is [key, points] for each key."""
    series = Series(seed.redis)
    return [list(series.get_range(*question).items()) for question in request["questions"]]


def limiter(seed, request):
    """Each step is [user, seconds]; answers whether it was over the limit, or "error"."""
    answers = []
    for user, seconds, *lost in request["steps"]:
        seed.now = seconds
        seed.between_add_and_incr = seed.cache.delete if lost else lambda key: None
        try:
            answers.append(getattr(seed, request["function"])(user, request["limit"]))
        except TypeError:  # None > limit: the counter was gone
            answers.append("error")
    return answers


def lock(seed, _):
    """What the seed's lock does where it goes wrong."""
    found = {}
    with seed.lock("held"):
        try:
            with seed.lock("held"):
                found["second"] = "entered"
        except Locked:
            found["second"] = "Locked"
    found["after release"] = seed.redis.exists("held")

    # The process dies between setnx and expire.
    seed.redis.setnx("crashed", "1")
    found["ttl after a crash"] = seed.redis.ttl("crashed")

    # A outlives its ten seconds (shortened here), B takes the lock, A releases it.
    a = seed.lock("outlived")
    a.__enter__()
    seed.redis.pexpire("outlived", 1)
    while seed.redis.exists("outlived"):
        sleep(0.001)
    b = seed.lock("outlived")
    b.__enter__()
    try:
        next(a.gen)
    except StopIteration:
        pass
    found["b's lock after a's release"] = seed.redis.exists("outlived")
    return found


if __name__ == "__main__":
    request = json.load(sys.stdin)
    seed = Seed(request["redis_port"], request["memcached_port"])
    run = {"lock": lock, "series_incr": series_incr, "series_get_range": series_get_range}.get(request["function"], limiter)
    json.dump(run(seed, request), sys.stdout)
