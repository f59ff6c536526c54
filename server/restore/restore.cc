// SPDX-License-Identifier: Apache-2.0
#include "server/restore/restore.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "intrawarp/v1/bulk.pb.h"
#include "server/base/worker_pool.h"
#include "server/bulk/staging_memory.h"
#include "server/context/limits.h"
#include "server/monitor/log.h"
#include "server/object/make_object.h"
#include "server/object/object_spec.h"
#include "server/placement/replication.h"
#include "server/restore/upload_header.h"
#include "server/status/errors.h"
#include "server/store/durable_objects.h"
#include "server/transform/transform_kind.h"
#include "server/volume/volume_kind.h"

namespace intrawarp::server {
namespace {

using std::chrono::system_clock;

// Payloads in host memory at once.
constexpr int kThreads = 4;

system_clock::time_point TimeOf(int64_t nanoseconds) {
  return system_clock::time_point(
      std::chrono::duration_cast<system_clock::duration>(std::chrono::nanoseconds(nanoseconds)));
}

DurableIdentity IdentityOf(const state::ObjectRow& row, const DurableObjects& durable) {
  DurableIdentity identity{row.id,       row.id_was_chosen, row.identity,   TimeOf(row.create_time),
                           std::nullopt, std::nullopt,      row.description};
  if (row.expire_time) identity.expiry = durable.ExpiryAt(*row.expire_time);
  if (!row.request_id.empty()) identity.request = RequestKey{row.request_id, row.request_fingerprint, row.owner};
  identity.owner = row.owner;
  if (row.kind == state::ObjectKind::kVolume) {
    identity.residency = std::make_shared<Residency>(DurableContent{row.header, row.payload, row.payload_bytes});
  }
  return identity;
}

// Limits of uploads do not count: what was accepted or computed once stays.
ServerLimits WithoutUploadLimits(ServerLimits limits) {
  limits.max_volume_bytes = limits.max_matrix_bytes = std::numeric_limits<int64_t>::max();
  return limits;
}

// The object of a durable content, by one of the functions that parse headers.
template <typename Parse>
auto ParseDurable(const DeviceContext& device, const DurableContent& content, const std::string& owner,
                  const Parse& parse)
    -> std::invoke_result_t<const Parse&, const v1::UploadHeader&, const ServerLimits&, const Device&> {
  v1::UploadHeader header;
  if (!header.ParseFromString(content.header)) return absl::DataLossError("its header is damaged");
  auto object = parse(header, WithoutUploadLimits(device.limits), device.device);
  if (!object.ok()) return object;
  if ((*object)->spec().total_bytes != content.payload_bytes) {
    return absl::DataLossError("header and payload do not match");
  }
  (*object)->set_owner(owner);
  return object;
}

absl::StatusOr<std::unique_ptr<NewObjectOf<StoredTransform>>> ParseTransform(const v1::UploadHeader& header,
                                                                             const ServerLimits& limits,
                                                                             const Device& /*device*/) {
  if (!header.has_transform()) return absl::DataLossError("its header is not that of a transform");
  return ParseTransformUpload(header, limits);
}

// Reads the bytes, verifies them and makes the object on the device's own thread, for which it waits.
absl::Status Load(DeviceContext& device, const DurableContent& content, NewObject& object) {
  StagingMemory memory;
  if (content.payload_bytes > 0) {
    INTRAWARP_ASSIGN_OR_RETURN(memory, StagingMemory::Reserve(content.payload_bytes));
  }
  const absl::Span<char> bytes(memory.data(), static_cast<size_t>(content.payload_bytes));
  INTRAWARP_RETURN_IF_ERROR(device.durable.Read(content.payload, bytes));
  INTRAWARP_RETURN_IF_ERROR(object.Validate(memory.data()));
  const auto staged = [data = memory.data()] { return StagedUpload(data, nullptr); };
  INTRAWARP_ASSIGN_OR_RETURN(std::future<absl::Status> made, MakeObject(device, object, staged));
  return made.get();
}

// The making of an object takes this. One that exceeds the limit of uploads takes all of it.
Claim DurableClaim(const DeviceContext& device, const ObjectSpec& spec) {
  Claim claim = ObjectClaim(spec, device.index);
  claim.uploading_bytes = std::min(claim.uploading_bytes, device.ledger.capacity(Resource::kUploading));
  claim.is_durable = true;
  return claim;
}

absl::Status RestoreObject(ServerContext& context, const state::ObjectRow& row) {
  const DurableContent content{row.header, row.payload, row.payload_bytes};
  DeviceContext& device = PlaceObject(context);
  INTRAWARP_ASSIGN_OR_RETURN(const std::unique_ptr<NewObject> object,
                             ParseDurable(device, content, row.owner, ParseUploadHeader));
  INTRAWARP_ASSIGN_OR_RETURN(Grant grant, device.ledger.Admit(DurableClaim(device, object->spec())));
  INTRAWARP_RETURN_IF_ERROR(Load(device, content, *object));
  return object->Restore(context, TakeReservation(grant, object->spec()), IdentityOf(row, context.durable));
}

void MarkLost(ServerContext& context, const state::ObjectRow& row, const absl::Status& why) {
  const std::string name = state::ObjectName(row.kind, row.id);
  Log(Severity::kError, "object_not_restored", {{"object", name}, {"cause", why.ToString()}});
  const absl::Status damaged = ObjectDamaged(name, why.message());
  switch (row.kind) {
    case state::ObjectKind::kVolume:
      return context.volumes.MarkLost(row.id, damaged, row.owner);
    case state::ObjectKind::kSparseMatrix:
      return context.matrices.MarkLost(row.id, damaged, row.owner);
    case state::ObjectKind::kTransform:
      return context.transforms.MarkLost(row.id, damaged, row.owner);
  }
}

// The outcome for each row. Several are read and verified at once, while the device makes one.
std::vector<absl::Status> RestoreAll(ServerContext& context, const std::vector<state::ObjectRow>& rows) {
  std::vector<absl::Status> outcomes(rows.size());
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < rows.size(); i = next++) outcomes[i] = RestoreObject(context, rows[i]);
  };
  {
    const int threads = std::clamp(context.limits.max_queued_jobs, 1, kThreads);
    WorkerPool workers(threads);
    for (int i = 0; i < threads; ++i) workers.Submit(work);
  }
  // Alone they need less memory for work.
  for (size_t i = 0; i < rows.size(); ++i) {
    if (absl::IsResourceExhausted(outcomes[i])) outcomes[i] = RestoreObject(context, rows[i]);
  }
  return outcomes;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const StoredTransform>> MakeDurableTransform(DeviceContext& device,
                                                                            const DurableContent& content,
                                                                            const std::string& description,
                                                                            const ReserveFn& reserve) {
  INTRAWARP_ASSIGN_OR_RETURN(const auto object, ParseDurable(device, content, /*owner=*/"", ParseTransform));
  const ObjectSpec& spec = object->spec();
  Claim claim = DurableClaim(device, spec);
  claim.resident_bytes = claim.transforms = 0;  // from `reserve`
  INTRAWARP_ASSIGN_OR_RETURN(const Grant working, device.ledger.Admit(claim, Share::kSession));
  INTRAWARP_ASSIGN_OR_RETURN(const std::shared_ptr<Grant> reservation, reserve(spec.resident_bytes));
  INTRAWARP_RETURN_IF_ERROR(Load(device, content, *object));
  return object->Take(std::move(*reservation), description);
}

absl::StatusOr<std::shared_ptr<const StoredVolume>> MakeDurableVolume(DeviceContext& device,
                                                                      const StoredVolume& spooled) {
  const DurableContent& content = spooled.residency->content();
  INTRAWARP_ASSIGN_OR_RETURN(const auto object, ParseDurable(device, content, spooled.owner, ParseVolumeUpload));
  INTRAWARP_ASSIGN_OR_RETURN(Grant grant, device.ledger.Admit(DurableClaim(device, object->spec())));
  INTRAWARP_RETURN_IF_ERROR(Load(device, content, *object));
  INTRAWARP_ASSIGN_OR_RETURN(const std::shared_ptr<StoredVolume> stored,
                             object->Take(TakeReservation(grant, object->spec()), /*description=*/""));
  Identify({spooled.id, spooled.id_was_chosen, spooled.digest, spooled.create_time, spooled.expiry, std::nullopt, "",
            spooled.owner, spooled.residency},
           stored);
  return stored;
}

absl::Status RestoreObjects(ServerContext& context) {
  const auto begin = std::chrono::steady_clock::now();
  INTRAWARP_ASSIGN_OR_RETURN(const std::vector<state::ObjectRow> rows, context.durable.state().List());
  const std::vector<absl::Status> outcomes = RestoreAll(context, rows);
  int64_t restored = 0, bytes = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (outcomes[i].ok()) {
      ++restored;
      bytes += rows[i].payload_bytes;
    } else {
      MarkLost(context, rows[i], outcomes[i]);
    }
  }
  const auto elapsed = std::chrono::steady_clock::now() - begin;
  Log(Severity::kInfo, "restored",
      {{"objects", absl::StrCat(restored)},
       {"lost", absl::StrCat(static_cast<int64_t>(rows.size()) - restored)},
       {"bytes", absl::StrCat(bytes)},
       {"ms", absl::StrCat(std::chrono::duration_cast<std::chrono::milliseconds>(elapsed).count())}});
  return absl::OkStatus();
}

}  // namespace intrawarp::server
