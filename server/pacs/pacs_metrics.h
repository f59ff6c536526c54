// SPDX-License-Identifier: Apache-2.0
// PacsMetrics: the DICOM side of a server: what came, what was fetched, and what became of it. Declared only where
// there is a DICOM port or an archive. No label holds a text from the network.
//
// Thread safety: safe for concurrent use.
#ifndef INTRAWARP_SERVER_PACS_PACS_METRICS_H_
#define INTRAWARP_SERVER_PACS_PACS_METRICS_H_

#include <chrono>
#include <cstdint>
#include <vector>

#include "server/monitor/registry.h"

namespace intrawarp::server {

// Values of the label outcome of associations: released, broken off, refused (unknown, over a limit), too slow or
// idle, of a broken protocol.
enum class AssociationOutcome { kReleased, kBroken, kRefused, kTimeout, kProtocol };
// The fate of an instance: stored in the spool; no room; no image that the reader takes; not what was negotiated, or
// another image than one of the same UID.
enum class InstanceOutcome { kStored, kNoRoom, kUnreadable, kRefused };
// The fate of a volume: resident; refused by the rules of the reader; refused for another reason, as no memory; given
// up because instances may be missing; waiting for memory, the disk or the device, once for a series.
enum class DicomVolumeOutcome { kResident, kRefused, kFailed, kIncomplete, kDeferred };

// Outcomes of associations that the server asked an archive for.
enum class RequestOutcome { kOpened, kFailed };
// Requests to archives by DICOMweb: QIDO-RS, whose answer may come in several pages, and WADO-RS.
enum class WebRequest { kSearch, kRetrieve };
// Their outcomes. kRefused: HTTP 401 and 403, other answers that say no, a TLS handshake that fails, an unusable file
// of the server's own. kUnavailable: not reached, broken off, or an answer that says "not now". kUnusable: cut short,
// or not DICOM. kTooLarge: above a limit, or no room in the spool.
enum class WebOutcome { kDone, kNotFound, kRefused, kUnavailable, kTimeout, kUnusable, kTooLarge, kCancelled };
// Outcomes of imports: the series became volumes; it did not, whatever the cause; somebody cancelled it.
enum class ImportOutcome { kDone, kFailed, kCancelled };

// Read for a scrape.
struct PacsSample {
  int64_t associations = 0;
  int64_t max_associations = 0;
  int64_t spool_bytes = 0;
  int64_t max_spool_bytes = 0;
  int64_t spool_instances = 0;
  int64_t made_instances = 0;
  int64_t unmade_instances = 0;
  int64_t imports_running = 0;
  int64_t imports_waiting = 0;
};

class PacsMetrics {
 public:
  explicit PacsMetrics(Registry& registry);

  void CountAssociation(AssociationOutcome outcome) const { associations_[outcome].Add(); }
  void CountInstance(InstanceOutcome outcome, int64_t bytes) const;
  void CountVolume(DicomVolumeOutcome outcome) const { volumes_[outcome].Add(); }
  void CountRequest(RequestOutcome outcome) const { requests_[outcome].Add(); }
  void CountWebRequest(WebRequest request, WebOutcome outcome) const;
  void CountImport(ImportOutcome outcome, std::chrono::nanoseconds elapsed) const;
  // From a series' being ready to its volumes' being resident.
  void ObserveSeries(std::chrono::nanoseconds elapsed) const { series_seconds_.Observe(Seconds(elapsed)); }
  void Set(const PacsSample& sample) const;

 private:
  const EnumCounters<AssociationOutcome> associations_;
  const EnumCounters<InstanceOutcome> instances_;
  const Counter received_bytes_;
  const EnumCounters<DicomVolumeOutcome> volumes_;
  const Histogram series_seconds_;
  const EnumCounters<RequestOutcome> requests_;
  std::vector<EnumCounters<WebOutcome>> web_requests_;  // in the order of WebRequest
  const EnumCounters<ImportOutcome> imports_;
  const Histogram import_seconds_;
  const Gauge imports_running_;
  const Gauge imports_waiting_;
  const Gauge open_associations_;
  const Gauge max_associations_;
  const Gauge spool_bytes_;
  const Gauge max_spool_bytes_;
  const Gauge spool_instances_;
  const Gauge made_instances_;
  const Gauge unmade_instances_;
};

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_PACS_PACS_METRICS_H_
