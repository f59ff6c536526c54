// SPDX-License-Identifier: Apache-2.0
#include "server/identity/method_roles.h"

#include <algorithm>

namespace intrawarp::server {
namespace {

constexpr Roles kFrame = Role::kFrame;
constexpr Roles kStage = Role::kStage;
constexpr Roles kBoth = kFrame | kStage;

// Looking is both roles'. The stage role brings, multiplies and deletes; the frame role registers. What a registration
// leaves behind (a transform, a session) its own role may remove. Each role begins operations, and may end its own. How
// the server itself behaves is admin's.
constexpr MethodRule kRules[] = {
    {"grpc.health.v1.Health/Check", kBoth, /*is_open=*/true},
    {"grpc.health.v1.Health/Watch", kBoth, /*is_open=*/true},
    {"intrawarp.v1.ServerService/GetServerInfo", kBoth},
    {"intrawarp.v1.ServerService/SetLogLevel", Roles()},
    {"intrawarp.v1.BulkService/Upload", kStage},
    {"intrawarp.v1.BulkService/GetUploadStatus", kStage},
    {"intrawarp.v1.BulkService/Download", kBoth},
    {"intrawarp.v1.VolumeService/GetVolume", kBoth},
    {"intrawarp.v1.VolumeService/ListVolumes", kBoth},
    {"intrawarp.v1.VolumeService/DeleteVolume", kStage},
    {"intrawarp.v1.SparseMatrixService/GetSparseMatrix", kBoth},
    {"intrawarp.v1.SparseMatrixService/ListSparseMatrices", kBoth},
    {"intrawarp.v1.SparseMatrixService/DeleteSparseMatrix", kStage},
    {"intrawarp.v1.SparseMatrixService/Multiply", kStage},
    {"intrawarp.v1.SparseMatrixService/MultiplyTriple", kStage},
    {"intrawarp.v1.TransformService/GetTransform", kBoth},
    {"intrawarp.v1.TransformService/ListTransforms", kBoth},
    {"intrawarp.v1.TransformService/DeleteTransform", kBoth},
    {"intrawarp.v1.TransformService/WarpVolume", kBoth},
    {"intrawarp.v1.TransformService/MapPoints", kBoth},
    {"intrawarp.v1.RegistrationService/Register", kFrame},
    {"intrawarp.v1.RegistrationService/Navigate", kFrame},
    {"intrawarp.v1.OperationService/GetOperation", kBoth},
    {"intrawarp.v1.OperationService/ListOperations", kBoth},
    {"intrawarp.v1.OperationService/WaitOperation", kBoth},
    {"intrawarp.v1.OperationService/CancelOperation", kBoth},
    {"intrawarp.v1.SessionService/GetSession", kFrame},
    {"intrawarp.v1.SessionService/ListSessions", kFrame},
    {"intrawarp.v1.SessionService/CloseSession", kFrame},
    {"intrawarp.v1.PacsService/ListRemotes", kStage},
    {"intrawarp.v1.PacsService/EchoRemote", kStage},
    {"intrawarp.v1.PacsService/FindSeries", kStage},
    {"intrawarp.v1.PacsService/ImportSeries", kStage},
};

}  // namespace

absl::Span<const MethodRule> MethodRules() { return kRules; }

const MethodRule* RuleOf(absl::string_view method) {
  const auto* const rule = std::find_if(std::begin(kRules), std::end(kRules),
                                        [&](const MethodRule& candidate) { return method == candidate.method; });
  return rule == std::end(kRules) ? nullptr : rule;
}

bool MayCall(Roles roles, absl::string_view method) {
  if (roles.Has(Role::kAdmin)) return true;
  const MethodRule* const rule = RuleOf(method);
  return rule != nullptr && (rule->is_open || roles.HasAnyOf(rule->roles));
}

}  // namespace intrawarp::server
