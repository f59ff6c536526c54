#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs the fuzz targets of a build with the preset fuzz, one after the other, for so many minutes each:
#   tests/fuzz/run.sh BUILD MINUTES [NAME...]     NAME: nifti, dicom, ...; all that are built unless given
#   tests/fuzz/run.sh BUILD report                what all runs in BUILD add up to, as the table of docs/evidence/fuzzing.md
#   tests/fuzz/run.sh BUILD merge [NAME...]       adds to the corpora of the repository what covers more, the smallest
#                                                 first, in small files and up to a few hundred
# The growing corpora are BUILD/fuzzing/NAME, the logs BUILD/fuzzing/NAME.log, and an input that broke a target is
# BUILD/fuzzing/findings/NAME-*. A target that breaks is started again until its time is over. Fails when one broke.
set -euo pipefail
usage() { sed -n '3,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[[ $# -ge 2 ]] || usage
readonly build=$(realpath "$1") what=$2 source=$(cd "$(dirname "$0")" && pwd)
shift 2
readonly targets=$build/tests/fuzz work=$build/fuzzing
readonly max_restarts=50 max_added_bytes=2048 max_added=60
mkdir -p "$work/findings"
# The tests do so, too: an allocation that cannot be is a status of ours.
export ASAN_OPTIONS=allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
names=("$@")
if [[ ${#names[@]} -eq 0 ]]; then
  for target in "$targets"/*_fuzz; do
    if [[ -x $target ]]; then name=$(basename "$target"); names+=("${name%_fuzz}"); fi
  done
fi

stat_of() { sed -n "s/^stat::$1: *//p" "$2" | tail -1; }

# One process until it ends; adds a line to runs.tsv: name, seconds, CPU seconds, executions, coverage, broke (0 or 1).
run_once() {
  local name=$1 seconds=$2 log=$work/$1.log times=$work/$1.times broke=0 begin=$SECONDS
  local options=(-max_total_time="$seconds" -timeout=300 -rss_limit_mb=3000 -print_final_stats=1 -verbosity=1
                 -artifact_prefix="$work/findings/$name-")
  { TIMEFORMAT='%U %S'; time "$targets/${name}_fuzz" "${options[@]}" "$work/$name" "$source/corpus/$name" \
    > "$log" 2>&1 || broke=1; } 2> "$times"
  local cpu executions covered
  cpu=$(awk 'END { print int($1 + $2 + 0.5) }' "$times")
  executions=$(stat_of number_of_executed_units "$log")
  covered=$(sed -n 's/^#[0-9].* cov: \([0-9]*\).*/\1/p' "$log" | tail -1)
  printf '%s\t%d\t%d\t%d\t%d\t%d\n' "$name" $((SECONDS - begin)) "$cpu" "${executions:-0}" "${covered:-0}" $broke \
    >> "$work/runs.tsv"
  rm -f "$times"
  if [[ $broke -eq 1 ]]; then
    grep -m1 -E 'ERROR: |violated: |runtime error: ' "$log" | sed "s/^/$name: /" || true
    mv "$log" "$work/findings/$name-$(date -u +%H%M%S).log"
  fi
  return $broke
}

run_target() {
  local name=$1 end=$((SECONDS + 60 * $2)) failed=0 restarts=0
  mkdir -p "$work/$name"
  while [[ $SECONDS -lt $end && $restarts -lt $max_restarts ]]; do
    run_once "$name" $((end - SECONDS)) || { failed=1; restarts=$((restarts + 1)); }
  done
  return $failed
}

# The repository's own files stay: some have names, since tests and commits speak of them.
merge() {
  local name=$1 smallest=$work/$1.smallest small=$work/$1.small added=0
  rm -rf "$smallest" "$small" && mkdir -p "$smallest" "$small" "$work/$name"
  find "$work/$name" -type f -size -$((max_added_bytes / 1024 + 1))k -exec cp -t "$small" {} +
  cp "$source/corpus/$name"/* "$smallest"
  "$targets/${name}_fuzz" -merge=1 -timeout=300 -rss_limit_mb=3000 "$smallest" "$small" > "$work/$name.merge.log" 2>&1
  local file
  while read -r file; do
    if [[ -e $source/corpus/$name/$file || $added -ge $max_added ]]; then continue; fi
    cp "$smallest/$file" "$source/corpus/$name/"
    added=$((added + 1))
  done < <(ls -Sr "$smallest")
  rm -rf "$smallest" "$small"
  echo "$name: $added added, now $(ls "$source/corpus/$name" | wc -l) files," \
    "$(cat "$source/corpus/$name"/* | wc -c) bytes"
}

report() {
  echo '| target | executions | wall, min | CPU, min | edges covered | runs that broke |'
  echo '|---|---|---|---|---|---|'
  sort -s -k1,1 "$work/runs.tsv" | awk -F'\t' '
    function flush() {
      if (name == "") return
      printf "| %s | %d | %.0f | %.1f | %d | %d |\n", name, executions, wall / 60, cpu / 60, covered, broke
    }
    $1 != name { flush(); name = $1; wall = cpu = executions = covered = broke = 0 }
    { wall += $2; cpu += $3; executions += $4; broke += $6; if ($5 > covered) covered = $5 }
    END { flush() }'
}

case $what in
  report) report ;;
  merge) for name in "${names[@]}"; do merge "$name"; done ;;
  *[!0-9]*) usage ;;
  *)
    failed=0
    for name in "${names[@]}"; do run_target "$name" "$what" || failed=1; done
    exit $failed
    ;;
esac
