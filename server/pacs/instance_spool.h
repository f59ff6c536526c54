// SPDX-License-Identifier: Apache-2.0
// InstanceSpool: the DICOM files that were received, in a folder of bounded size, gathered by series.
//
// A series is ready for its volumes once no association that has sent instances of it is open, none of its instances is
// missing, and either all are there that its images announce or none has come for `quiet`. The images of an association
// that broke off may lack slices, and so does a series with fewer images than they announce: such a series waits for
// another association that sends of it and ends well, and is given up after `patience`.
//
// A series whose volumes were made, or could not be, is settled: its files stay, so that an instance that comes late
// makes the series ready once more, whole. Each time that this happens again, `quiet` is twice as long for it, up to
// `patience`: a slow sender makes few volumes. Settled files count for the bounds and give way to new ones, the oldest
// series first: at once where the series has volumes, after `unmade_stays` where it has none, since its sender counts
// on them. The instances of a series that has gone are remembered: what comes of it later is not a series without them.
//
// An instance is one file. A second one of the same peer under the same name must be equal, byte for byte.
//
// Files lie in the folder under names of their own, readable by their owner alone. With `keep` an image is on the disk
// once it was added, and a new spool takes over what an earlier one has left: a series that was whole then, which a
// file in its folder says, is ready, a settled one is settled, and any other one waits like one that broke off. Images
// of a peer that is not listed any more stay where they are, until it is listed again or a person removes them.
// Without `keep`, files go with the spool, and a new spool removes what an earlier one has left. What an import gathers
// is never kept.
//
// Thread safety: safe for concurrent use; a SpooledFile is thread-compatible.
#ifndef INTRAWARP_SERVER_PACS_INSTANCE_SPOOL_H_
#define INTRAWARP_SERVER_PACS_INSTANCE_SPOOL_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/pacs/peers.h"
#include "server/status/errors.h"

namespace intrawarp::server {

class InstanceSpool;
struct GatheredSeries;

// One file of the spool, and the room that it takes.
class SpooledFile {
 public:
  SpooledFile(InstanceSpool& spool, const DicomPeer& peer, std::string path, int fd, bool keep);
  // Removes the file.
  ~SpooledFile();
  SpooledFile(const SpooledFile&) = delete;

  // RESOURCE_EXHAUSTED when the spool, the peer's part of it or the disk is full; UNAVAILABLE for other errors of the
  // disk.
  absl::Status Append(absl::string_view bytes);
  // No more bytes come. Those of a file that is kept are on the disk then.
  absl::Status Close();
  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }

 private:
  friend class InstanceSpool;
  friend struct GatheredSeries;

  InstanceSpool& spool_;
  const DicomPeer& peer_;
  std::string path_;
  int fd_;
  const bool keep_;
  int64_t bytes_ = 0;
  bool stays_ = false;  // without its object
};

// The key that tells gathered series apart.
struct SeriesKey {
  std::string peer;  // AE title
  // Hexadecimal digits: the hash of its UID (io/dicom), and then a part of the hash of its study and patient.
  std::string series;

  friend auto operator<=>(const SeriesKey&, const SeriesKey&) = default;
};

struct GatheredSeries {
  SeriesKey key;
  // The folder of its files.
  std::string folder;
  std::map<std::string, std::unique_ptr<SpooledFile>> files;  // by a hash of the instance
  // Instances may be missing, and nobody has sent them for too long.
  bool given_up = false;
  // The volumes of it that were made before it was put back, from the same files.
  // By the id that they would have first: their names.
  std::map<std::string, std::string> made;
  bool was_put_back = false;

  GatheredSeries() = default;
  GatheredSeries(const GatheredSeries&) = delete;
  // Removes the folder.
  ~GatheredSeries();

 private:
  friend class InstanceSpool;
  bool is_marked_ = false;         // as whole, in its folder
  const char* settled_ = nullptr;  // how it is marked there as settled
  int rounds_ = 0;                 // how often more of it came after it had been settled
  bool was_settled_ = false;       // and nothing new has come since
};

struct SpoolOptions {
  // An existing folder, in which nothing else lies.
  std::string folder;
  int64_t max_bytes = 0;
  int64_t max_instances = 200000;
  std::chrono::nanoseconds quiet{0};
  std::chrono::nanoseconds patience = std::chrono::minutes(10);
  // How long the files of settled series stay at most: those that became volumes, and those that did not. The latter
  // give way to nothing for `unmade_stays`.
  std::chrono::nanoseconds made_age = std::chrono::hours(1);
  std::chrono::nanoseconds unmade_stays = std::chrono::hours(24);
  std::chrono::nanoseconds unmade_age = std::chrono::hours(7 * 24);
  bool keep = false;
  // The peer of an AE title; null: it is not listed any more. Unset with `keep`: nobody knows the peers. What an
  // earlier spool has kept of a peer that is not known stays where it is, counts for the bounds and becomes no volumes.
  std::function<const DicomPeer*(const std::string& ae_title)> peer;
  std::function<std::chrono::steady_clock::time_point()> now = std::chrono::steady_clock::now;
};

class InstanceSpool {
 public:
  // FAILED_PRECONDITION when the folder holds something else, or cannot be read, emptied and written to.
  static absl::StatusOr<std::unique_ptr<InstanceSpool>> Open(SpoolOptions options);
  ~InstanceSpool();

  // A new file, kept where the spool keeps. `peer` outlives it. RESOURCE_EXHAUSTED when there are too many;
  // UNAVAILABLE.
  absl::StatusOr<std::unique_ptr<SpooledFile>> NewFile(const DicomPeer& peer) { return NewFile(peer, options_.keep); }
  // One for a series of NewSeries, which is not kept.
  absl::StatusOr<std::unique_ptr<SpooledFile>> NewPassingFile(const DicomPeer& peer) { return NewFile(peer, false); }

  // Adds a whole file to its series. `association`: any number that tells apart those that are open. `announced`: the
  // images that the file says its series has; -1: it does not say. An equal file of the same instance goes, and counts
  // as sent again. ALREADY_EXISTS where the peer's instance is there with other bytes, in this series or another one.
  absl::Status Add(const SeriesKey& key, const std::string& instance, std::unique_ptr<SpooledFile> file,
                   int64_t association, int64_t announced = -1);
  // A series of its own, which TakeReady never gives: an import gathers it. Its files do not outlive the spool.
  // RESOURCE_EXHAUSTED, UNAVAILABLE.
  absl::StatusOr<std::unique_ptr<GatheredSeries>> NewSeries(const SeriesKey& key);
  // Adds a whole file to such a series. An equal one of the same instance goes; ALREADY_EXISTS where one is there with
  // other bytes. The caller sees to it that nobody else uses the series.
  absl::Status AddTo(GatheredSeries& series, const std::string& instance, std::unique_ptr<SpooledFile> file);
  // An instance of the peer is on its way, or has come and could not be kept: no series of the peer counts as whole
  // until it is added, is unexpected, or was not sent again for `patience`, after which the peer's series are
  // incomplete. RESOURCE_EXHAUSTED when the peer has too many such instances.
  absl::Status Expect(const DicomPeer& peer, const std::string& instance);
  // The expected instance is one of this series: no other series waits for it any more.
  void Attribute(const SeriesKey& key, const std::string& instance);
  void Unexpect(const DicomPeer& peer, const std::string& instance);
  // The expected instance of this series went to an import: what its peer has begun to send of the series by itself
  // lacks it, unless it has come before.
  void Divert(const SeriesKey& key, const std::string& instance);
  // The association adds no more. `newest`: the largest number of any association so far. An association that had begun
  // before another one broke off makes nothing whole. `complete`: it ended well, and no instance of an unknown series
  // was refused.
  void EndAssociation(int64_t association, bool complete, int64_t newest);

  // Takes a series that is ready, or one that is given up. Null when there is none. Whoever takes it puts it back,
  // settles it or destroys it, with its files.
  std::unique_ptr<GatheredSeries> TakeReady();
  // A series that was taken needs no more work unless more of it comes. `has_volumes`: all its files became volumes.
  void Settle(std::unique_ptr<GatheredSeries> series, bool has_volumes);
  // A series that was taken can make no volumes now: it is ready again from then on. Instances that have come meanwhile
  // stay in the place of its own.
  void PutBack(std::unique_ptr<GatheredSeries> series, std::chrono::steady_clock::time_point not_before);

  // The bytes of series that are not settled, and of files that come.
  int64_t bytes() const { return InUse().bytes; }
  int64_t instances() const { return InUse().instances; }
  int64_t series() const;
  // The instances of settled series that became volumes, and of the others.
  int64_t made_instances() const { return Settled(/*has_volumes=*/true).instances; }
  int64_t unmade_instances() const { return Settled(/*has_volumes=*/false).instances; }
  // The instances of peers that are not known, which an earlier spool has left.
  int64_t unknown_instances() const;
  // Instances that went without having become a volume, since they were too old.
  int64_t dropped_instances() const { return dropped_; }
  int64_t max_bytes() const { return options_.max_bytes; }

 private:
  friend class SpooledFile;
  struct Use {
    int64_t bytes = 0;
    int64_t instances = 0;
  };
  struct Gathering {
    std::unique_ptr<GatheredSeries> series;
    std::set<int64_t> open;
    // An association that added to it ended badly, and none that began after number `broken_at` has ended well since.
    bool incomplete = false;
    int64_t broken_at = 0;
    std::chrono::steady_clock::time_point last;
    std::chrono::steady_clock::time_point not_before;
    int64_t announced = -1;
    bool is_settled = false;
    bool has_volumes = false;  // of a settled one
    // With is_settled: since when.
    std::chrono::steady_clock::time_point settled_at;
  };

  struct Missing {
    std::chrono::steady_clock::time_point since;
    std::string series;  // empty: any of the peer's
  };
  // The expected instances of a peer, and how many there are of each series.
  struct Expected {
    std::map<std::string, Missing> instances;
    std::map<std::string, int64_t> of_series;

    void Put(const std::string& instance, Missing missing);
    void Erase(const std::string& instance);
    // Whether an instance of the series may be missing.
    bool Holds(const std::string& series) const { return of_series.contains(series) || of_series.contains(""); }
  };

  explicit InstanceSpool(SpoolOptions options) : options_(std::move(options)) {}
  absl::StatusOr<std::unique_ptr<SpooledFile>> NewFile(const DicomPeer& peer, bool keep);
  absl::Status Take(const DicomPeer& peer, int64_t bytes, int64_t instances);
  // Without the mutex: removes the settled series that gives way first, of the peer where one is named. False when
  // there is none.
  bool MakeRoom(const std::string* peer);
  Use InUse() const;
  Use Settled(bool has_volumes) const;
  void Give(const DicomPeer& peer, int64_t bytes, int64_t instances);
  absl::Status Recover();
  void RecoverSeries(const std::string& folder, const SeriesKey& key, const DicomPeer& peer);
  void CountSeries(const std::string& folder);
  // ALREADY_EXISTS unless the peer's instance is new, or the file equals the one that is there.
  absl::Status CheckInstance(const std::string& peer, const std::string& instance, const SpooledFile& file) const;
  // With the mutex held.
  absl::Status TryTake(const DicomPeer& peer, int64_t bytes, int64_t instances, bool* is_of_peer);
  std::vector<std::string> PathsOf(const std::string& peer, const std::string& instance) const;
  void MarkSettled(GatheredSeries& series, const char* mark);
  void Awaken(Gathering& gathering, bool is_new);
  std::chrono::nanoseconds QuietOf(const GatheredSeries& series) const;
  bool MayLack(const SeriesKey& key, const Gathering& gathering) const;
  void Remember(const GatheredSeries& series);
  std::vector<std::unique_ptr<GatheredSeries>> TakeOld(std::chrono::steady_clock::time_point now);
  absl::StatusOr<Gathering*> Find(const SeriesKey& key);
  absl::StatusOr<std::unique_ptr<GatheredSeries>> MakeSeries(const SeriesKey& key, bool keep);
  absl::Status MoveInto(GatheredSeries& series, const std::string& instance, SpooledFile& file);
  bool IsWhole(const SeriesKey& key, const Gathering& gathering) const;
  void Mark(GatheredSeries& series);
  void Unmark(GatheredSeries& series);
  void DropOverdue(std::chrono::steady_clock::time_point now);

  const SpoolOptions options_;
  mutable std::mutex mutex_;
  Use use_;
  std::map<std::string, Use> peers_;
  std::map<SeriesKey, Gathering> gatherings_;
  std::map<std::string, Expected> expected_;  // by AE title
  Use unknown_;                               // of peers that are not known
  std::atomic<int64_t> dropped_{0};
  // The files of series that were taken, by instance.
  std::map<SeriesKey, std::map<std::string, std::string>> taken_;
  // The instances of settled series whose files have gone, and the order in which they went.
  std::map<SeriesKey, std::set<std::string>> gone_;
  std::deque<SeriesKey> gone_order_;
  int64_t gone_instances_ = 0;
  int64_t next_name_ = 0;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PACS_INSTANCE_SPOOL_H_
