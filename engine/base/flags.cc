// SPDX-License-Identifier: Apache-2.0
#include "engine/base/flags.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/base/status_macros.h"

namespace intrawarp {
namespace {

absl::Status Wrong(const std::string& argument, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(argument, ": ", what));
}

absl::Status CheckRange(const FlagSpec& spec, double value) {
  if (value < spec.minimum) return Wrong("--" + spec.name, absl::StrCat("must be at least ", spec.minimum));
  if (value > spec.maximum) return Wrong("--" + spec.name, absl::StrCat("must be at most ", spec.maximum));
  return absl::OkStatus();
}

absl::Status CheckValue(const FlagSpec& spec, const std::string& value) {
  int64_t integer = 0;
  double number = 0;
  switch (spec.type) {
    case FlagType::kInteger:
      if (!absl::SimpleAtoi(value, &integer)) return Wrong("--" + spec.name, "not an integer: " + value);
      return CheckRange(spec, static_cast<double>(integer));
    case FlagType::kNumber:
      if (!absl::SimpleAtod(value, &number) || !std::isfinite(number)) {
        return Wrong("--" + spec.name, "not a finite number: " + value);
      }
      return CheckRange(spec, number);
    default:
      break;
  }
  if (spec.choices.empty() || std::count(spec.choices.begin(), spec.choices.end(), value) > 0) return absl::OkStatus();
  return Wrong("--" + spec.name, absl::StrCat("must be one of ", absl::StrJoin(spec.choices, ", "), ": ", value));
}

// The number of letters to insert, remove or replace (Levenshtein 1966).
size_t Distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = above;
    }
  }
  return row[b.size()];
}

// Where one name holds the other, the distance is only what is missing, at a lower price.
size_t Strangeness(const std::string& name, const std::string& known) {
  const bool holds = name.size() >= 3 && (absl::StrContains(known, name) || absl::StrContains(name, known));
  const size_t distance = Distance(name, known);
  return holds ? distance / 4 + 1 : distance;
}

const FlagSpec* Find(const CommandSyntax& syntax, const std::string& name) {
  const auto found =
      std::find_if(syntax.flags.begin(), syntax.flags.end(), [&](const FlagSpec& spec) { return spec.name == name; });
  return found == syntax.flags.end() ? nullptr : &*found;
}

// "--name=value" or "--name" into the map.
absl::Status ParseFlag(const CommandSyntax& syntax, const std::string& argument,
                       std::map<std::string, std::string>* values) {
  const size_t equals = argument.find('=');
  const std::string option = argument.substr(0, equals);
  const FlagSpec* spec = absl::StartsWith(option, "--") ? Find(syntax, option.substr(2)) : nullptr;
  if (spec == nullptr) return Wrong(option, "unknown option" + NearestFlag(syntax, option));
  if (values->count(spec->name) > 0 && !syntax.last_wins) return Wrong(option, "given more than once");
  const bool has_value = equals != std::string::npos;
  if (spec->type == FlagType::kSwitch && has_value) return Wrong(option, "takes no value");
  if (spec->type != FlagType::kSwitch && (!has_value || equals + 1 == argument.size())) {
    return Wrong(option, absl::StrCat("needs a value: ", option, "=", spec->placeholder));
  }
  const std::string value = has_value ? argument.substr(equals + 1) : "";
  INTRAWARP_RETURN_IF_ERROR(CheckValue(*spec, value));
  values->insert_or_assign(spec->name, value);
  return absl::OkStatus();
}

}  // namespace

std::string ParsedFlags::String(const std::string& name, const std::string& otherwise) const {
  const auto found = values_.find(name);
  return found == values_.end() ? otherwise : found->second;
}

int64_t ParsedFlags::Integer(const std::string& name, int64_t otherwise) const {
  int64_t value = otherwise;
  if (Has(name)) (void)absl::SimpleAtoi(values_.at(name), &value);
  return value;
}

double ParsedFlags::Number(const std::string& name, double otherwise) const {
  double value = otherwise;
  if (Has(name)) (void)absl::SimpleAtod(values_.at(name), &value);
  return value;
}

std::string Suggestion(const std::string& name, const std::vector<std::string>& known, const std::string& prefix) {
  constexpr size_t kLongestName = 64;
  const std::string* nearest = nullptr;
  size_t least = std::min<size_t>(name.size(), kLongestName) / 3 + 1;
  for (const std::string& each : known) {
    if (name.size() > kLongestName) break;
    const size_t distance = Strangeness(name, each);
    if (distance > least || (nearest != nullptr && distance == least)) continue;
    nearest = &each;
    least = distance;
  }
  return nearest == nullptr ? "" : absl::StrCat("; did you mean ", prefix, *nearest, "?");
}

std::string NearestFlag(const CommandSyntax& syntax, const std::string& option) {
  std::vector<std::string> names;
  for (const FlagSpec& spec : syntax.flags) names.push_back(spec.name);
  return Suggestion(option.substr(std::min(option.find_first_not_of('-'), option.size())), names, "--");
}

absl::StatusOr<ParsedFlags> ParseFlags(const CommandSyntax& syntax, absl::Span<const std::string> arguments) {
  ParsedFlags parsed;
  parsed.arguments_.assign(arguments.begin(), arguments.end());
  for (const std::string& argument : arguments) {
    if (absl::StartsWith(argument, "-")) {
      INTRAWARP_RETURN_IF_ERROR(ParseFlag(syntax, argument, &parsed.values_));
    } else if (parsed.positionals_.size() == syntax.positionals.size()) {
      return Wrong(argument.empty() ? "''" : argument, "unexpected argument");
    } else if (argument.empty()) {
      return Wrong(syntax.positionals[parsed.positionals_.size()], "is empty");
    } else {
      parsed.positionals_.push_back(argument);
    }
  }
  if (parsed.positionals_.size() < syntax.positionals.size() &&
      syntax.positionals[parsed.positionals_.size()].front() != '[') {
    return Wrong(syntax.positionals[parsed.positionals_.size()], "is missing");
  }
  for (const FlagSpec& spec : syntax.flags) {
    if (spec.required && !parsed.Has(spec.name)) return Wrong("--" + spec.name, "is missing");
  }
  return parsed;
}

std::string FlagHelp(const CommandSyntax& syntax) {
  std::string help;
  for (const FlagSpec& spec : syntax.flags) {
    const std::string left = spec.type == FlagType::kSwitch ? absl::StrCat("--", spec.name)
                                                            : absl::StrCat("--", spec.name, "=", spec.placeholder);
    absl::StrAppendFormat(&help, "  %-38s %s%s\n", left, spec.help, spec.required ? " (required)" : "");
  }
  return help;
}

}  // namespace intrawarp
