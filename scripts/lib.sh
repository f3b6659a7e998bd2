# What every script here needs: where things are, how to speak, how to time a stage.
# Sourced, never run: `source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"`.
# shellcheck shell=bash

set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"

# Tools that belong to no single checkout. They are kept by version, so clones share them and no other
# project's tools are replaced.
TOOLS=${TOLLGATE_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/tollgate}
case $TOOLS in /*) ;; *) TOOLS=$ROOT/$TOOLS ;; esac

say() { printf '%s\n' "$*"; }
warn() { printf '%s\n' "$*" >&2; }
die() { warn "$@"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

# stage NAME COMMAND...: runs it, says how long it took, and answers as it did. bash ignores -e in a function whose
# status is asked for, so the steps of such a function are joined by &&.
stage() {
  local name=$1 started=$SECONDS status=0
  shift
  say "== $name"
  "$@" || status=$?
  if [ "$status" = 0 ]; then
    say "== $name: $((SECONDS - started)) s"
  else
    say "== $name: FAILED after $((SECONDS - started)) s (exit $status)"
  fi
  return "$status"
}

# problem WHAT HOW: says what could not be installed, and how to do it by hand. The set-up scripts go on after it,
# so that one run names all that is missing, and end with `[ "$PROBLEMS" = 0 ]`.
PROBLEMS=0
problem() {
  warn "MISSING: $1"
  warn "  By hand: $2"
  PROBLEMS=$((PROBLEMS + 1))
}

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; elif have sudo; then sudo "$@"; else return 1; fi
}

# apt_install PACKAGE...: quietly, with its log kept for when it fails.
apt_install() {
  have apt-get || return 1
  local log=$TOOLS/apt.log
  mkdir -p "$TOOLS"
  if apt_try "$@" </dev/null >"$log" 2>&1; then return 0; fi
  # A dpkg that was killed half way refuses all further work until it has been told to finish.
  as_root dpkg --configure -a </dev/null >>"$log" 2>&1 || true
  apt_try "$@" </dev/null >>"$log" 2>&1 || { tail -n 15 "$log" >&2; return 1; }
}
apt_try() {
  # Another apt may be at work (a machine's first minutes are when it updates itself): wait for its lock.
  local apt=(as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=120)
  # --reinstall, because it is only asked for what is missing: a package that counts as installed lacks its files.
  "${apt[@]}" update && "${apt[@]}" install -y --reinstall --no-install-recommends "$@"
}

# The wasm-bindgen of the crate. Its command line tool must be of exactly this version, because the two share a
# format that has no compatibility promise.
wasm_bindgen_version() {
  local version=
  [ -f Cargo.lock ] &&
    version=$(awk -F'"' '/^name = /{found = $2 == "wasm-bindgen"} found && /^version = /{print $2; exit}' Cargo.lock)
  [ -n "$version" ] ||
    version=$(sed -nE 's/^wasm-bindgen = .*"=([0-9][^"]*)".*/\1/p' Cargo.toml | head -n 1)
  [ -n "$version" ] || die "Cannot find the version of wasm-bindgen in Cargo.lock or Cargo.toml."
  printf '%s\n' "$version"
}

wasm_bindgen_root() { printf '%s/wasm-bindgen-%s\n' "$TOOLS" "$(wasm_bindgen_version)"; }

# A python3 that has the packages redis and pymemcache, which the tests of old clients use, and prometheus_client, whose
# parser reads our metrics. The system's own comes first: Debian's packages are installed for that one, and another
# python3 may stand before it in PATH.
test_python() {
  local python
  for python in /usr/bin/python3 python3; do
    if have "$python" && "$python" -c 'import redis, pymemcache, prometheus_client' 2>/dev/null; then
      command -v "$python"
      return
    fi
  done
  return 1
}

# sha256 of standard input: Linux has sha256sum, macOS has shasum.
hash_of_input() {
  if have sha256sum; then sha256sum; else shasum -a 256; fi | cut -d ' ' -f 1
}

# npm scripts find the system's node first. Ours comes before it: wrangler and miniflare need a newer one than
# some systems have, so the `node` package brings it.
PATH="$ROOT/node_modules/.bin:$(wasm_bindgen_root)/bin:$PATH"
export PATH

# Nothing here reports to anyone, asks a question or looks for a newer version of itself.
export WRANGLER_SEND_METRICS=false WRANGLER_HIDE_BANNER=true WRANGLER_NO_SKILLS_UPDATE_PROMPTS=true
export CLOUDFLARE_CF_FETCH_ENABLED=false NO_UPDATE_NOTIFIER=1 npm_config_update_notifier=false
