// SPDX-License-Identifier: Apache-2.0
#include "client/cli/completion.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/global_flags.h"
#include "engine/base/flags.h"

namespace intrawarp::cli {
namespace {

// bash cuts words at "=", so that the value of an option is a word of its own.
constexpr char kFunction[] = R"(_intrawarp() {
  local word command="" value="" flag=""
  local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}"
  local i first="" options=""
  for ((i = 1; i < COMP_CWORD; i++)); do
    word="${COMP_WORDS[i]}"
    [[ "$word" == -* || "$word" == "=" || "${COMP_WORDS[i-1]}" == "=" ]] && continue
    if _intrawarp_options "${first:+$first }$word"; then command="${first:+$first }$word"; break; fi
    [[ -z "$first" ]] || break
    first="$word"
  done
  if [[ "$current" == "=" ]]; then
    flag="$previous"
  elif [[ "$previous" == "=" ]]; then
    flag="${COMP_WORDS[COMP_CWORD-2]}" value="$current"
  fi
  COMPREPLY=()
  if [[ -n "$flag" ]]; then
    _intrawarp_values "$command" "$flag"
    COMPREPLY=($(compgen -W "$options" -- "$value"))
  elif [[ -z "$command" ]]; then
    _intrawarp_words "$first"
    COMPREPLY=($(compgen -W "$options" -- "$current"))
  elif [[ "$current" == -* ]]; then
    _intrawarp_options "$command"
    COMPREPLY=($(compgen -W "$options" -- "$current"))
  fi
  if [[ ${#COMPREPLY[@]} == 1 && "${COMPREPLY[0]}" == *= ]]; then
    compopt -o nospace 2>/dev/null
  fi
  return 0
}
complete -o default -F _intrawarp intrawarp
)";

std::string Options(const CommandSyntax& syntax) {
  return absl::StrJoin(syntax.flags, " ", [](std::string* out, const FlagSpec& flag) {
    absl::StrAppend(out, "--", flag.name, flag.type == FlagType::kSwitch ? "" : "=");
  });
}

CommandSyntax SyntaxOf(const Command& command) {
  return command.needs_server ? WithGlobalFlags(command.syntax) : command.syntax;
}

// The options of a command; false for a word that is not one.
std::string OptionsFunction(const std::vector<Command>& commands) {
  std::string text = "_intrawarp_options() {\n  case \"$1\" in\n";
  for (const Command& command : commands) {
    absl::StrAppend(&text, "    \"", command.name, "\") options=\"", Options(SyntaxOf(command)), " --help\" ;;\n");
  }
  absl::StrAppend(&text, "    *) return 1 ;;\n  esac\n}\n");
  return text;
}

// The second words after a first one, or the first words with the options that stand before a command.
std::string WordsFunction(const std::vector<Command>& commands) {
  std::string first, text = "_intrawarp_words() {\n  case \"$1\" in\n";
  std::string group, seconds;
  const auto finish = [&] {
    if (!seconds.empty()) absl::StrAppend(&text, "    \"", group, "\") options=\"", seconds, "\" ;;\n");
    seconds.clear();
  };
  for (const Command& command : commands) {
    const size_t space = command.name.find(' ');
    const std::string word = command.name.substr(0, space);
    if (word != group) {
      finish();
      group = word;
      absl::StrAppend(&first, word, " ");
    }
    if (space != std::string::npos) absl::StrAppend(&seconds, command.name.substr(space + 1), " ");
  }
  finish();
  absl::StrAppend(&text, "    \"\") options=\"", first, "help ", Options(GlobalSyntax()),
                  " --help --version\" ;;\n  esac\n}\n");
  return text;
}

// The values of an option that has a few.
std::string ValuesFunction(const std::vector<Command>& commands) {
  std::string text = "_intrawarp_values() {\n  case \"$1 $2\" in\n";
  for (const Command& command : commands) {
    for (const FlagSpec& flag : command.syntax.flags) {
      if (flag.choices.empty()) continue;
      absl::StrAppend(&text, "    \"", command.name, " --", flag.name, "\") options=\"",
                      absl::StrJoin(flag.choices, " "), "\" ;;\n");
    }
  }
  absl::StrAppend(&text, "    *) ;;\n  esac\n}\n");
  return text;
}

}  // namespace

std::vector<std::string> CompletionShells() { return {"bash", "zsh"}; }

absl::StatusOr<std::string> CompletionScript(absl::string_view shell, const std::vector<Command>& commands) {
  const std::string bash =
      absl::StrCat(OptionsFunction(commands), WordsFunction(commands), ValuesFunction(commands), kFunction);
  if (shell == "bash") return absl::StrCat("# bash completion for intrawarp\n", bash);
  // zsh runs bash's functions.
  if (shell == "zsh") return absl::StrCat("#compdef intrawarp\nautoload -U +X bashcompinit && bashcompinit\n", bash);
  return absl::InvalidArgumentError(absl::StrCat(shell, ": must be one of ", absl::StrJoin(CompletionShells(), ", ")));
}

}  // namespace intrawarp::cli
