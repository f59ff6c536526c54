# SPDX-License-Identifier: Apache-2.0
# Shared by the programs of tests/accuracy that talk to a server. Sourced from bash, from the repository's root.
source deploy/lib.sh

# launch PROGRAM.py ARGUMENT...: installs the packages that it needs (with --peers, those of the peers too), builds
# intrawarpd and intrawarp unless INTRAWARP_BIN names a folder with them, and becomes the program.
launch() {
  local program="$1" argument sections=(accuracy)
  shift
  for argument in "$@"; do
    [[ "$argument" == --peers ]] && sections+=(peers)
  done
  install_packages "${sections[@]}"
  if [[ -z "${INTRAWARP_BIN:-}" ]]; then
    build_programs build/programs
    INTRAWARP_BIN="$PWD/build/programs/bin"
  fi
  exec /usr/bin/python3 "tests/accuracy/$program" --bin="$INTRAWARP_BIN" "$@"
}
