// SPDX-License-Identifier: Apache-2.0
// A strict command-line parser: --name=value, --switch, and a fixed number of other arguments. What is unknown,
// doubled, missing or ill-formed is INVALID_ARGUMENT with a message that names it. Thread-safe functions, plain values.
#ifndef INTRAWARP_ENGINE_BASE_FLAGS_H_
#define INTRAWARP_ENGINE_BASE_FLAGS_H_

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace intrawarp {

enum class FlagType {
  kSwitch,   // --name
  kString,   // --name=TEXT, not empty
  kInteger,  // --name=N
  kNumber,   // --name=V, finite
};

struct FlagSpec {
  std::string name;
  FlagType type = FlagType::kString;
  // What stands after the = in the help.
  std::string placeholder;
  std::string help;
  bool required = false;
  // kString: when not empty, the only values allowed.
  std::vector<std::string> choices = {};
  // kInteger and kNumber: inclusive.
  double minimum = -std::numeric_limits<double>::infinity();
  double maximum = std::numeric_limits<double>::infinity();
};

struct CommandSyntax {
  std::vector<FlagSpec> flags;
  // What the other arguments are called in messages and in the help; each must be given, but for one in brackets.
  std::vector<std::string> positionals = {};
  // Whether a flag may be given again, and the last one counts; otherwise that is an error.
  bool last_wins = false;
};

class ParsedFlags {
 public:
  bool Has(const std::string& name) const { return values_.count(name) > 0; }
  // The value as given, or the default when the flag is absent.
  std::string String(const std::string& name, const std::string& otherwise = "") const;
  int64_t Integer(const std::string& name, int64_t otherwise = 0) const;
  double Number(const std::string& name, double otherwise = 0) const;
  const std::string& Positional(size_t i) const { return positionals_.at(i); }
  size_t positional_count() const { return positionals_.size(); }
  // As they were given, in their order.
  const std::vector<std::string>& arguments() const { return arguments_; }

 private:
  friend absl::StatusOr<ParsedFlags> ParseFlags(const CommandSyntax&, absl::Span<const std::string>);
  std::map<std::string, std::string> values_;
  std::vector<std::string> positionals_;
  std::vector<std::string> arguments_;
};

absl::StatusOr<ParsedFlags> ParseFlags(const CommandSyntax& syntax, absl::Span<const std::string> arguments);

// "; did you mean --field_stride?" for the nearest of the known names, or nothing where none is near. A name that holds
// the given one, or is held by it, is near ("stride" and "field_stride"); otherwise few letters may differ.
std::string Suggestion(const std::string& name, const std::vector<std::string>& known, const std::string& prefix = "");

// The same, for the nearest flag of a syntax to an option, whose dashes do not count.
std::string NearestFlag(const CommandSyntax& syntax, const std::string& option);

// One line a flag, indented.
std::string FlagHelp(const CommandSyntax& syntax);

}  // namespace intrawarp

#endif  // INTRAWARP_ENGINE_BASE_FLAGS_H_
