#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The manual pages name every option and command of the programs, and troff finds nothing wrong with them.
#   manuals.sh SOURCE_DIR PROGRAM...
set -euo pipefail
manual="$1/deploy/debian/manual"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
failed=0
fail() { echo "manuals: $*" >&2; failed=1; }

for program in "${@:2}"; do
  name="${program##*/}"
  "$manual" "$program" >"$work/page"
  MANWIDTH=100 GROFF_NO_SGR=1 man --warnings -l -Tutf8 "$work/page" >"$work/text" 2>"$work/warnings"
  [[ ! -s "$work/warnings" ]] || fail "$name: $(head -n1 "$work/warnings")"
  # Overstrikes for bold, and the hyphens that troff makes of its own.
  sed -i -e 's/.\x08//g' -e 's/\xe2\x80\x90/-/g' "$work/text"
  "$program" --help | grep -oE '^  --[a-z_]+' | tr -d ' ' >"$work/options"
  [[ -s "$work/options" ]] || fail "$name: no options"
  while read -r option; do
    grep -qF -e "$option" "$work/text" || fail "$name: $option is missing"
  done <"$work/options"
done
exit "$failed"
