#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What bash offers after `intrawarp`, as its completion script tells it.   completion.sh PROGRAM
set -euo pipefail
program="$1"
# shellcheck disable=SC1090
source <("$program" completion bash)
failed=0

# complete WORDS...: what is offered for the last of the words.
offered() {
  COMP_WORDS=(intrawarp "$@")
  COMP_CWORD=$#
  _intrawarp
  printf '%s\n' ${COMPREPLY[@]+"${COMPREPLY[@]}"} | LC_ALL=C sort | tr '\n' ' '
}
expect() {
  local wanted="$1"
  shift
  local found
  found="$(offered "$@")"
  # shellcheck disable=SC2053  # what is wanted may be a pattern
  [[ "$found" == $wanted ]] && return
  echo "intrawarp $*: offered '$found', wanted '$wanted'" >&2
  failed=1
}

expect 'register ' reg
expect 'volume ' vol
expect '*register *volume *' ''
expect '--server= ' --serv
expect 'delete get list put show ' volume ''
expect '--pinned ' volume put --pi
expect '--fixed= --fixed_dicom= --fixed_mask= --fixed_weight= ' register --fixed
expect '*--server=*' register --s
expect 'ssd ' register --metric = s
expect '*lncc*nmi*' register --metric = ''
expect '--help ' health --he
# Files, and words of a command that does not exist, are left to the shell.
expect ' ' volume put ./
expect ' ' nothing at all

[[ "$("$program" completion zsh)" == "#compdef intrawarp"$'\n'* ]] || { echo "zsh: not a completion" >&2; failed=1; }
[[ "$("$program" completion --help)" == *"completion bash|zsh"* ]] || { echo "completion --help: fails" >&2; failed=1; }
for wrong in "completion" "completion fish" "completion bash zsh"; do
  status=0
  # shellcheck disable=SC2086
  "$program" $wrong >/dev/null 2>&1 || status=$?
  [[ $status == 2 ]] || { echo "intrawarp $wrong: exit status $status" >&2; failed=1; }
done
exit "$failed"
