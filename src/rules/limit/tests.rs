//! Every algorithm against a plain list of what it admitted. The list is the model: it shares no code with them.

use proptest::prelude::*;

use super::*;
use crate::values::number::MAX_SAFE_INTEGER;

const ALGORITHMS: [&str; 8] = [
    "fixed-window",
    "fixed-window-from-first-hit",
    "sliding-window",
    "sliding-log",
    "token-bucket",
    "gcra",
    "calendar-day",
    "calendar-month-05:00",
];

fn limit(name: &str, quota: u64, window_ms: u64) -> Limit {
    let rate = Rate::new(quota, Duration::from_millis(window_ms)).unwrap();
    Limit::new(Algorithm::from_name(name.as_bytes()).unwrap(), rate).unwrap()
}

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

/// A limit's state, driven through the public step as the keyspace drives it: expired states are none.
#[derive(Clone, Default)]
struct Key {
    state: Option<State>,
    expires: Option<Timestamp>,
}

impl Key {
    fn live(&self, now: u64) -> Option<&State> {
        self.state.as_ref().filter(|_| self.expires.is_some_and(|expires| at(now) <= expires))
    }

    fn ask(&self, limit: Limit, cost: u64, now: u64) -> Decision {
        limit.decide(self.live(now), cost, at(now)).unwrap().0
    }

    fn take(&mut self, limit: Limit, cost: u64, now: u64) -> Decision {
        let (decision, next) = limit.decide(self.live(now), cost, at(now)).unwrap();
        assert!((decision.allowed && cost > 0) || next == Next::Keep, "a refusal or a look changes nothing");
        self.apply(next);
        decision
    }

    fn refund(&mut self, limit: Limit, amount: u64, reset_at: Timestamp, now: u64) {
        let next = limit.refund(self.live(now), amount, reset_at, at(now));
        self.apply(next);
    }

    fn apply(&mut self, next: Next) {
        if let Next::Put { state, expires } = next {
            (self.state, self.expires) = (Some(state), Some(expires));
        }
    }
}

/// What was admitted: when, and how much.
type Log = Vec<(u64, u64)>;

fn sum(log: &Log, from: u64, until: u64) -> u64 {
    log.iter().filter(|(at, _)| (from..until).contains(at)).map(|(_, cost)| cost).sum()
}

/// Whether `cost` may be admitted at `now`, by the words of the algorithm's promise.
fn may_pass(name: &str, log: &Log, quota: u64, window: u64, cost: u64, now: u64) -> bool {
    match name {
        "fixed-window" => sum(log, now / window * window, now + 1) + cost <= quota,
        "fixed-window-from-first-hit" => {
            let mut window_start = None;
            for (at, _) in log {
                if window_start.is_none_or(|start| *at >= start + window) {
                    window_start = Some(*at);
                }
            }
            let open = window_start.filter(|start| now < start + window);
            open.is_none_or(|start| sum(log, start, now + 1) + cost <= quota)
        }
        "sliding-window" => {
            let start = now / window * window;
            let (previous, current) = (sum(log, start.saturating_sub(window), start), sum(log, start, now + 1));
            u128::from(previous) * u128::from(start + window - now) + u128::from(current + cost) * u128::from(window)
                <= u128::from(quota) * u128::from(window)
        }
        "sliding-log" => sum(log, (now + 1).saturating_sub(window), now + 1) + cost <= quota,
        "token-bucket" | "gcra" => log.iter().map(|(at, _)| *at).chain([now]).all(|from| {
            let admitted = u128::from(sum(log, from, now + 1) + cost) * u128::from(window);
            admitted <= u128::from(quota) * (u128::from(window) + u128::from(now - from))
        }),
        "calendar-day" => sum(log, now / 86_400_000 * 86_400_000, now + 1) + cost <= quota,
        _ => {
            // The first of months at 05:00 UTC around the times the tests use, from `date -u -d`.
            const FIRSTS: [u64; 4] = [1_698_814_800_000, 1_701_406_800_000, 1_704_085_200_000, 1_706_763_600_000];
            let start = FIRSTS.into_iter().filter(|first| *first <= now).max().unwrap();
            sum(log, start, now + 1) + cost <= quota
        }
    }
}

/// 2023-11-30T23:59:58Z: an edge of days, hours and minutes is near.
const START: u64 = 1_701_388_798_000;

proptest! {
    #[test]
    fn each_admits_exactly_what_its_promise_allows(
        which in 0usize..8, quota in 1u64..15, window in prop_oneof![1u64..40, 100u64..5000],
        steps in prop::collection::vec((prop_oneof![0u64..30, 0u64..3000, Just(20_000_000)], 0u64..5), 1..80),
    ) {
        let name = ALGORITHMS[which];
        let (limit, mut key, mut log, mut now) = (limit(name, quota, window), Key::default(), Log::new(), START);
        for (step, cost) in steps {
            now += step;
            let cost = cost.min(quota);
            let before = key.clone();
            let decision = key.take(limit, cost, now);
            prop_assert_eq!(decision.allowed, cost == 0 || may_pass(name, &log, quota, window, cost, now), "{} {:?}", name, log);
            if decision.allowed && cost > 0 {
                log.push((now, cost));
            }
            // What is told to remain is exactly what would pass.
            let left = decision.remaining;
            prop_assert!(left <= quota);
            prop_assert!(left == 0 || key.ask(limit, left, now).allowed);
            prop_assert!(left == quota || !key.ask(limit, left + 1, now).allowed);
            let more = limit.more_after(key.live(now), left, at(now)).as_millis();
            prop_assert_eq!(more == 0, left == quota);
            prop_assert!(more <= limit.longest_wait().as_millis());
            prop_assert!(left == quota || key.ask(limit, 0, now + more).remaining > left, "{} has more after {}", name, more);
            prop_assert!(more == 0 || key.ask(limit, 0, now + more - 1).remaining == left, "{} and no earlier", name);
            if let Some(retry) = decision.retry_after.map(Duration::as_millis) {
                prop_assert!(retry > 0 && before.ask(limit, cost, now + retry).allowed, "{} passes after {}", name, retry);
                prop_assert!(!before.ask(limit, cost, now + retry - 1).allowed, "{} and not one ms earlier", name);
            }
            prop_assert!(decision.retry_after.is_some() != decision.allowed);
            let whole = decision.reset_at.as_millis();
            prop_assert_eq!(key.ask(limit, 0, whole.max(now)).remaining, quota, "{} is whole at its reset", name);
        }
    }

    #[test]
    fn a_clock_that_goes_back_mints_nothing(
        which in 0usize..8, quota in 1u64..10, window in 10u64..2000,
        steps in prop::collection::vec((-500i64..700, 1u64..3), 1..60),
    ) {
        let name = ALGORITHMS[which];
        let (limit, mut key, mut log) = (limit(name, quota, window), Key::default(), Log::new());
        let (mut now, mut latest) = (START, 0);
        for (step, cost) in steps {
            now = now.saturating_add_signed(step);
            let cost = cost.min(quota);
            if key.take(limit, cost, now).allowed {
                // Had the clock stood still since the last charge instead, it would have been allowed as well.
                latest = latest.max(now);
                prop_assert!(may_pass(name, &log, quota, window, cost, latest), "{} at {} after {}", name, now, latest);
                log.push((latest, cost));
            }
        }
    }

    #[test]
    fn a_refund_never_gives_more_than_was_charged(
        which in 0usize..8, quota in 1u64..12, window in 1u64..3000,
        steps in prop::collection::vec((0u64..2000, 1u64..4, 0u64..6, 0usize..4), 1..40),
    ) {
        let name = ALGORITHMS[which];
        let (limit, mut key, mut now) = (limit(name, quota, window), Key::default(), START);
        let (mut log, mut charges, mut charged) = (Log::new(), Vec::new(), 0);
        for (step, cost, amount, back) in steps {
            now += step;
            let decision = key.take(limit, cost.min(quota), now);
            if decision.allowed {
                log.push((now, cost.min(quota)));
                charged += cost.min(quota);
                charges.push((log.len() - 1, decision.reset_at));
            }
            // A bucket knows how much of one charge it has refilled by itself, but not what another refund has changed.
            let is_exact = !["token-bucket", "gcra"].contains(&name) || log.iter().map(|(_, cost)| cost).sum::<u64>() == charged;
            let charge = charges.len().checked_sub(back + 1).filter(|_| is_exact);
            if let Some((index, reset_at)) = charge.map(|at| charges.remove(at)) {
                let given = amount.min(log[index].1);
                key.refund(limit, given, reset_at, now);
                log[index].1 -= given;
            }
            // Against the list without what was given back: a refund may be refused, and is never more than that.
            let left = key.ask(limit, 0, now).remaining;
            prop_assert!(left <= quota);
            prop_assert!(left == 0 || may_pass(name, &log, quota, window, left, now), "{}: {} left of {:?}", name, left, log);
        }
    }

    /// A charge that comes after the fact is counted whether it fits or not, up to one quota of debt; a reward gives back
    /// what is used and no more. The model is a count of units over a standstill of the clock.
    #[test]
    fn penalties_and_rewards_move_what_is_used(
        which in 0usize..8, quota in 1u64..20, steps in prop::collection::vec((0u64..30, any::<bool>()), 1..20),
    ) {
        let (limit, mut key, mut used) = (limit(ALGORITHMS[which], quota, 60_000), Key::default(), 0u64);
        for (amount, is_penalty) in steps {
            let next = if is_penalty {
                used = (used + amount).min(2 * quota);
                let ask = Ask { cost: amount, overdraws: true, holder: None };
                limit.decide_for(key.live(START), ask, at(START)).unwrap().1
            } else {
                let next = limit.reward(key.live(START), amount, at(START));
                prop_assert_eq!(next == Next::Keep, used.min(amount) == 0);
                used = used.saturating_sub(amount);
                next
            };
            key.apply(next);
            let remaining = key.ask(limit, 0, START).remaining;
            prop_assert_eq!(remaining, quota.saturating_sub(used), "{}", ALGORITHMS[which]);
            if let Some(wait) = key.ask(limit, 1, START).retry_after.map(Duration::as_millis) {
                prop_assert!(wait <= limit.longest_wait().as_millis());
                prop_assert!(key.ask(limit, 1, START + wait).allowed && !key.ask(limit, 1, START + wait - 1).allowed);
            }
        }
        prop_assert_eq!(key.ask(limit, 0, START + 2 * limit.longest_wait().as_millis()).remaining, quota);
    }

    #[test]
    fn no_input_panics(
        which in 0usize..8, quota: u64, window: u64, old_quota: u64, old_window: u64, costs in prop::array::uniform3(any::<u64>()),
        times in prop::array::uniform3(any::<u64>()), big in any::<u128>(),
    ) {
        let algorithm = Algorithm::from_name(ALGORITHMS[which].as_bytes()).unwrap();
        let rate = |quota: u64, window: u64| Rate::new(quota % MAX_SAFE_INTEGER + 1, Duration::from_millis(window % 31_622_400_000 + 1)).unwrap();
        let (Ok(old), Ok(new)) = (Limit::new(algorithm, rate(old_quota, old_window)), Limit::new(algorithm, rate(quota, window))) else { return Ok(()) };
        let mut states: Vec<Option<State>> = vec![None,
            Some(State::FixedWindow(fixed_window::State { start: at(times[0]), window: Duration::from_millis(times[1]), used: costs[0] })),
            Some(State::SlidingWindow(sliding_window::State { start: at(times[0]), window: Duration::from_millis(times[1]), previous: costs[0], current: costs[1] })),
            Some(State::SlidingLog(sliding_log::State { hits: [(at(times[0]), costs[0]), (at(times[1]), costs[1])].into() })),
            Some(State::TokenBucket(token_bucket::State { rate: old.rate, at: at(times[0]), missing: big })),
            Some(State::Gcra(gcra::State { rate: old.rate, arrival: big })),
        ];
        for limit in [old, new] {
            for state in states.clone() {
                if let Ok((decision, next)) = limit.decide(state.as_ref(), costs[2] % limit.rate.quota, at(times[2])) {
                    prop_assert!(decision.remaining <= limit.rate.quota);
                    let _ = limit.refund(state.as_ref(), costs[0], decision.reset_at, at(times[1]));
                    let _ = limit.reward(state.as_ref(), costs[0], at(times[1]));
                    let _ = limit.decide_for(state.as_ref(), Ask { cost: costs[0], overdraws: true, holder: None }, at(times[1]));
                    if let Next::Put { state, .. } = next { states.push(Some(state)); }
                }
            }
        }
    }
}

#[test]
fn a_quota_of_one_works_in_every_algorithm_case_b1() {
    for name in ALGORITHMS {
        let (limit, mut key) = (limit(name, 1, 10_000), Key::default());
        let first = key.take(limit, 1, START);
        assert!(first.allowed && first.remaining == 0, "{name}");
        let second = key.take(limit, 1, START + 1);
        assert!(!second.allowed, "{name}");
        let retry = second.retry_after.unwrap().as_millis();
        assert!(key.take(limit, 1, START + 1 + retry).allowed, "{name}");
    }
}

#[test]
fn after_a_thousand_idle_windows_it_is_a_fresh_start_case_b3() {
    for name in ALGORITHMS {
        for idle in [2 * 86_400_000, 40 * 86_400_000] {
            let (limit, mut key) = (limit(name, 5, 10_000), Key::default());
            let _ = key.take(limit, 5, START);
            let days = if name.contains("month") { 40 * 86_400_000 } else { idle };
            assert_eq!(key.ask(limit, 0, START + days).remaining, 5, "{name}");
            // Also when nothing was forgotten in between.
            key.expires = Some(at(u64::MAX));
            assert_eq!(key.ask(limit, 0, START + days).remaining, 5, "{name}");
        }
    }
}

#[test]
fn a_refused_cost_takes_nothing_case_b19() {
    for name in ALGORITHMS {
        let (limit, mut key) = (limit(name, 10, 3_600_000), Key::default());
        assert!(key.take(limit, 8, START).allowed);
        let refused = key.take(limit, 5, START);
        assert_eq!((refused.allowed, refused.remaining), (false, 2), "{name}");
        assert_eq!(key.take(limit, 1, START).remaining, 1, "{name}");
        let error = limit.decide(key.live(START), 11, at(START)).unwrap_err();
        assert_eq!(error.message(), "cost: expected at most the quota 10, got 11", "{name}");
    }
}

#[test]
fn a_bucket_that_is_asked_often_keeps_its_fractions_case_b11() {
    for name in ["token-bucket", "gcra"] {
        // Input A: 10 per 30 s, one hit a second: one more at 3, 6 and 9 s.
        let (ten, mut key) = (limit(name, 10, 30_000), Key::default());
        let left: Vec<_> = (0..10).map(|second| key.take(ten, 1, START + second * 1000).remaining).collect();
        assert_eq!(left, [9, 8, 7, 7, 6, 5, 5, 4, 3, 3], "{name}");
        // Input C: 100 tokens a second, asked every millisecond while it is empty.
        let (slow, mut key) = (limit(name, 100, 1000), Key::default());
        let _ = key.take(slow, 100, START);
        let admitted = (1..=1000).filter(|ms| key.take(slow, 1, START + ms).allowed).count();
        assert_eq!(admitted, 100, "{name}");
    }
}

#[test]
fn the_log_frees_when_the_oldest_leaves_case_b5() {
    let (two, mut key) = (limit("sliding-log", 2, 60_000), Key::default());
    assert!(key.take(two, 1, 0).allowed && key.take(two, 1, 10_000).allowed);
    assert_eq!(key.take(two, 1, 20_000).retry_after.unwrap().as_millis(), 40_000);
    assert_eq!(key.take(two, 2, 20_000).retry_after.unwrap().as_millis(), 50_000, "for two, the second oldest");
    assert!(Limit::new(Algorithm::SlidingLog, Rate::parse("10001/hour").unwrap()).is_err());
}

#[test]
fn numbers_that_change_apply_at_once_and_usage_is_kept_case_b96() {
    for name in ALGORITHMS.into_iter().filter(|name| !name.starts_with("calendar")) {
        let mut key = Key::default();
        let now = START / 3_600_000 * 3_600_000;
        let _ = key.take(limit(name, 100, 3_600_000), 50, now);
        assert_eq!(key.ask(limit(name, 10, 3_600_000), 0, now).remaining, 0, "{name}: lowered below the usage");
        assert_eq!(key.ask(limit(name, 200, 3_600_000), 0, now).remaining, 150, "{name}: raised");
        assert_eq!(key.ask(limit(name, 100, 7_200_000), 0, now).remaining, 50, "{name}: longer");
        assert_eq!(key.ask(limit(name, 100, 60_000), 0, now).remaining, 50, "{name}: shorter");
    }
}

#[test]
fn a_key_of_another_algorithm_is_an_error_and_not_a_fresh_start() {
    let mut key = Key::default();
    let _ = key.take(limit("gcra", 5, 1000), 1, START);
    let error = limit("token-bucket", 5, 1000).decide(key.live(START), 1, at(START)).unwrap_err();
    assert!(error.message().starts_with("key: expected one that is counted by token-bucket"), "{error}");
}

#[test]
fn table_of_a_fixed_window() {
    let (ten_a_minute, mut key) = (limit("fixed-window", 10, 60_000), Key::default());
    // (now, cost) -> (allowed, remaining, reset_at, retry_after)
    for (now, cost, allowed, remaining, reset_at, retry) in [
        (120_000, 1, true, 9, 180_000, None),
        (120_000, 7, true, 2, 180_000, None),
        (150_000, 5, false, 2, 180_000, Some(30_000)),
        (150_000, 1, true, 1, 180_000, None),
        (150_000, 0, true, 1, 180_000, None),
        (119_999, 1, true, 0, 180_000, None), // the clock went back: same window
        (110_000, 1, false, 0, 180_000, Some(70_000)),
        (179_999, 1, false, 0, 180_000, Some(1)),
        (180_000, 10, true, 0, 240_000, None),
        (60_180_000, 1, true, 9, 60_240_000, None), // idle for 1,000 windows
    ] {
        let d = key.take(ten_a_minute, cost, now);
        let retry_ms = d.retry_after.map(Duration::as_millis);
        let found = (d.allowed, d.remaining, d.reset_at.as_millis(), retry_ms);
        assert_eq!(found, (allowed, remaining, reset_at, retry), "at {now}, cost {cost}");
    }
}
