// SPDX-License-Identifier: Apache-2.0
// Ledger: the one admission of a server. A request claims everything that it will hold (memory and places in tables)
// before any work is done for it; what was admitted does not fail later for want of room.
//
// Workspace. A class of jobs has as many lanes as it has jobs started at once, and of those an owner has at most
// `at_once`, and as many short ones. Admitted jobs that wait hold no workspace. So a class reserves the sum of its
// largest workspaces, as many as it has lanes and no more of an owner than that owner can have started.
//
// Owners. Of every resource an owner has a limit. An owner's workspace is what the jobs of the owner reserve together.
//
// Shares. A part of each resource is set aside for open sessions (LedgerOptions::session_reserve). A claim of
// Share::kSession may use everything; a claim of Share::kCommon never touches the part set aside, used or not.
//
// Devices. Resident bytes and workspace are those of the device that a claim names; all else is the server's.
//
// Thread safety: Ledger is safe for concurrent use. A Grant is thread-compatible.
#ifndef INTRAWARP_SERVER_LEDGER_LEDGER_H_
#define INTRAWARP_SERVER_LEDGER_LEDGER_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/schedule/scheduling_policy.h"

namespace intrawarp::server {

// Transforms that a session holds at once: the 16 that it keeps, those of frames in flight, the start of the next one,
// and the room for as many in flight that it holds back.
inline constexpr int kSessionTransforms = 28;

enum class Share { kCommon, kSession };
inline constexpr int kShares = 2;

enum class Resource {
  kResident,   // bytes of device memory of objects and of results on their way
  kWorkspace,  // bytes of device memory of started jobs
  kPinned,     // bytes of host memory for transfers
  kUploading,  // bytes of unfinished uploads, on the host or the device, whichever is more; of results until the state
               // directory has them
  kTransforms,
  kStreams,
  kUploads,
  kSessions,
  kOperations,  // that have not ended
};
inline constexpr int kResources = static_cast<int>(Resource::kOperations) + 1;
constexpr std::array<Resource, kResources> AllResources() {
  std::array<Resource, kResources> all{};
  for (int i = 0; i < kResources; ++i) all[i] = static_cast<Resource>(i);
  return all;
}
// The name in the metadata of errors and in metrics.
inline constexpr std::array<const char*, kResources> kResourceNames = {
    "resident_memory", "workspace_memory", "pinned_memory", "upload_memory", "transforms",
    "streams",         "uploads",          "sessions",      "operations"};

// An amount of every resource.
struct Amounts {
  int64_t resident_bytes = 0;
  int64_t workspace_bytes = 0;
  int64_t pinned_bytes = 0;
  int64_t uploading_bytes = 0;
  int64_t transforms = 0;
  int64_t streams = 0;
  int64_t uploads = 0;
  int64_t sessions = 0;
  int64_t operations = 0;

  int64_t& operator[](Resource resource);
  int64_t operator[](Resource resource) const { return const_cast<Amounts&>(*this)[resource]; }
  friend bool operator==(const Amounts&, const Amounts&) = default;
};

static_assert(sizeof(Amounts) == kResources * sizeof(int64_t), "an amount of every resource");

// Whether each device has its own amount of a resource.
constexpr bool IsPerDevice(Resource resource) {
  return resource == Resource::kResident || resource == Resource::kWorkspace;
}

// The amounts that a request asks for. The workspace serves one job of `job_class`.
struct Claim : Amounts {
  JobClass job_class = JobClass::kInteractive;
  // The device of the resident bytes and the workspace; counted from 0.
  int device = 0;
  // The name of the identity for which it is; empty: nobody's, which has no limits of its own.
  std::string owner = {};
  // The limits of the owner do not count: what was accepted once stays.
  bool is_durable = false;
  // The workspace is that of a short job (SchedulingPolicy).
  bool is_short = false;
};

class GrantPool;

// A grant holds an admitted claim and gives it back when it goes: to the ledger, or to the pool that lent it. Movable;
// empty by default. The ledger must outlive it.
class Grant {
 public:
  Grant() = default;
  Grant(Grant&& other) noexcept { *this = std::move(other); }
  Grant& operator=(Grant&& other) noexcept;
  ~Grant();

  const Claim& held() const { return held_; }
  int64_t resident_bytes() const { return held_.resident_bytes; }
  // The device whose memory it holds; 0 for an empty grant.
  int device() const { return held_.device; }
  // Whether a pool gets it back.
  bool is_lent() const { return pool_ != nullptr; }

  // Gives back what is beyond `amounts`, resource by resource.
  void Shrink(const Amounts& amounts);
  void ShrinkResident(int64_t bytes);
  // Moves `amounts`, or what there is of them, into a grant of its own, which gives back to where this one does.
  Grant Split(const Amounts& amounts);
  // Takes over all that `other` holds: a grant of the same ledger, share and device, whose workspace is 0.
  void Merge(Grant other);

 private:
  friend class GrantPool;
  friend class Ledger;
  Grant(class Ledger* ledger, Share share, const Claim& held) : ledger_(ledger), share_(share), held_(held) {}

  class Ledger* ledger_ = nullptr;
  Share share_ = Share::kCommon;
  Claim held_;
  std::shared_ptr<GrantPool> pool_;  // null: none lent it
};

// The memory of a device: of both shares together, and the part that only sessions can use. What is not memory of a
// device does not count.
struct LedgerDevice {
  // In the messages of refusals; may be empty.
  std::string name;
  Amounts capacity;
  Amounts session_reserve;
};

struct LedgerOptions {
  // The capacity of both shares together.
  Amounts capacity = {};
  // The part of the capacity that only sessions can use; at most the capacity.
  Amounts session_reserve = {};
  // Jobs of a class that are started at once, at least 1.
  std::array<int, kJobClasses> lanes = {1, 1, 1};
  // Jobs of one owner, and as many short ones; 0: as many as lanes.
  std::array<int, kJobClasses> at_once = {};
  // The devices of a server with several. Empty: one, with the memory in `capacity` and `session_reserve`.
  std::vector<LedgerDevice> devices = {};
  // The most of each resource that one owner can have; 0: no limit.
  Amounts owner_limit = {};
};

// The state of one resource.
struct ResourceUse {
  int64_t in_use = 0;  // by both shares
  int64_t capacity = 0;
  int64_t session_in_use = 0;
  int64_t session_reserve = 0;
  int64_t peak = 0;  // the most that was ever in use
};

class Ledger {
 public:
  // Frees what lies on a device only for speed, until a claim could have `bytes` more of its resident memory or
  // nothing is left to free. Called without a lock of the ledger's.
  using ReclaimFn = std::function<void(int device, int64_t bytes)>;

  explicit Ledger(const LedgerOptions& options);

  // Asked before a claim is refused for want of resident memory. Before the first claim.
  void set_reclaim(ReclaimFn reclaim) { reclaim_ = std::move(reclaim); }

  // All of the claim or nothing. An amount below 0 is one that overflowed.
  // FAILED_PRECONDITION (EXCEEDS_CAPACITY) when the share can never hold it; RESOURCE_EXHAUSTED when others hold too
  // much of a resource now: RESIDENT_MEMORY (also for kUploading), WORKSPACE_MEMORY, PINNED_MEMORY,
  // TOO_MANY_TRANSFORMS, TOO_MANY_STREAMS, TOO_MANY_UPLOADS, TOO_MANY_SESSIONS, TOO_MANY_OPERATIONS, or OWNER_QUOTA.
  // Both tell the amounts asked, in use and in all.
  absl::StatusOr<Grant> Admit(const Claim& claim, Share share = Share::kCommon);
  // Frees what is there only for speed until a claim of this share could have `bytes` of resident memory, where
  // possible.
  void Reclaim(int64_t bytes, Share share, int device) const;

  int devices() const { return static_cast<int>(options_.devices.size()); }
  // The use of all devices together; the peak is then the sum of theirs.
  ResourceUse use(Resource resource) const;
  int64_t in_use(Resource resource) const { return use(resource).in_use; }
  // The use of one device, for a resource that each device has its own of.
  ResourceUse use(Resource resource, int device) const;
  // The most that a claim of this share on this device can have.
  int64_t capacity(Resource resource, Share share = Share::kCommon, int device = 0) const;
  // The most that one owner can have; 0: no limit.
  int64_t owner_limit(Resource resource) const { return options_.owner_limit[resource]; }
  // The use of an owner on all devices together; the workspace is what the owner's jobs reserve.
  Amounts owner_use(const std::string& owner) const;
  // The amount that a claim of this share on this device could have now.
  int64_t available(Resource resource, Share share = Share::kCommon, int device = 0) const;

 private:
  friend class Grant;
  using Largest = std::multiset<int64_t, std::greater<>>;
  // The workspaces of each owner's jobs, short ones apart.
  using Workspaces = std::map<std::pair<std::string, bool>, Largest>;

  // The server, or one of its devices.
  struct Account {
    std::array<Amounts, kShares> used;
    std::array<std::array<Workspaces, kJobClasses>, kShares> workspaces;
    Amounts peak;
  };

  // The first account is the server's.
  static size_t AccountOf(Resource resource, int device) { return IsPerDevice(resource) ? 1 + device : 0; }
  int64_t CapacityOf(Resource resource, int device) const;
  int64_t ReserveOf(Resource resource, int device) const;
  std::string NameOf(Resource resource, int device) const;
  absl::StatusOr<Grant> TryAdmit(const Claim& claim, Share share);
  // All with the mutex held.
  int64_t& Used(Resource resource, Share share, int device);
  int64_t Used(Resource resource, Share share, int device) const;
  ResourceUse Use(Resource resource, int device) const;
  int64_t Available(Resource resource, Share share, int device) const;
  absl::Status CheckCapacity(Resource resource, const Claim& claim, Share share) const;
  absl::Status CheckAvailable(Resource resource, const Claim& claim, Share share);
  absl::Status CheckOwner(const Claim& claim, Share share);
  // How much more of a resource the owner has with the claim.
  int64_t OwnerIncrease(Resource resource, const Claim& claim, Share share);
  int64_t OwnerWorkspace(const std::string& owner) const;
  void AddToOwner(const Claim& claim, int sign);
  // How much more of a resource is in use with the claim.
  int64_t Increase(Resource resource, const Claim& claim, Share share);
  void Add(const Claim& claim, Share share);
  void Remove(const Claim& claim, Share share);
  // Jobs of an owner that can have started.
  size_t AtOnce(int job_class) const;
  int64_t SumOfLargest(const Claim& claim, Share share) const;
  // With the claim's workspace while `reserved` is computed.
  template <typename Reserved>
  int64_t IncreaseOf(const Claim& claim, Share share, const Reserved& reserved);
  void AddWorkspace(const Claim& claim, Share share);
  void RemoveWorkspace(const Claim& claim, Share share);
  Workspaces& WorkspacesOf(const Claim& claim, Share share);

  const LedgerOptions options_;  // with at least one device
  ReclaimFn reclaim_;
  mutable std::mutex mutex_;
  std::vector<Account> accounts_;
  std::map<std::string, Amounts> owners_;  // of those who have anything; without workspace
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_LEDGER_LEDGER_H_
