// SPDX-License-Identifier: Apache-2.0
#include "server/audit/audit_record.h"

#include "absl/strings/escaping.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"

namespace intrawarp::audit {
namespace {

using Json = nlohmann::ordered_json;

void AddText(Json& json, const char* name, const std::string& text) {
  if (!text.empty()) json[name] = text;
}

void AddObject(Json& json, const char* name, const std::string& text) {
  Json object = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (object.is_object() && !object.empty()) json[name] = std::move(object);
}

}  // namespace

std::string ToJson(const AuditRecord& record, int64_t seq, const std::string& previous) {
  Json json;
  json["seq"] = seq;
  json["time"] = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromChrono(record.time), absl::UTCTimeZone());
  json["action"] = record.action;
  AddText(json, "who", record.who);
  AddText(json, "peer", record.peer);
  if (record.frame) json["frame"] = *record.frame;
  for (const auto& [role, digest] : record.digests) {
    if (!digest.empty()) json["sha256"][role] = absl::BytesToHexString(digest);
  }
  for (const auto& [role, name] : record.names) json["names"][role] = name;
  AddText(json, "crc32c", record.checksum);
  AddObject(json, "options", record.options);
  AddText(json, "device", record.device);
  AddText(json, "outcome", record.outcome);
  AddText(json, "reason", record.reason);
  AddObject(json, "quality", record.quality);
  if (record.milliseconds) json["ms"] = *record.milliseconds;
  for (const auto& [name, text] : record.notes) AddText(json, name.c_str(), text);
  AddText(json, "previous", previous);
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace intrawarp::audit
