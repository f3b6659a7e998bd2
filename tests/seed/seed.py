"""The seed's limiters and lock on real servers, as Python 3.

The seed reads the clock and its clients from module scope, formats `{user_id}` without a name and leaves out line
breaks; here both are given, and the rest is as it stands. It reads one JSON request on standard input and writes one
JSON answer.
"""

import json
import sys
from contextlib import contextmanager
from time import sleep

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
    run = lock if request["function"] == "lock" else limiter
    json.dump(run(seed, request), sys.stdout)
