// SPDX-License-Identifier: Apache-2.0
#include "server/pacs/dicom_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <array>
#include <sstream>

namespace intrawarp::server {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;

constexpr std::array<const char*, 5> kAssociations = {"released", "broken", "refused", "timeout", "protocol"};
constexpr std::array<const char*, 4> kInstances = {"stored", "no_room", "unreadable", "refused"};
constexpr std::array<const char*, 5> kVolumes = {"resident", "refused", "failed", "incomplete", "deferred"};
constexpr std::array<const char*, 2> kRequests = {"opened", "failed"};
constexpr std::array<const char*, 2> kWebRequests = {"search", "retrieve"};
constexpr std::array<const char*, 8> kWebOutcomes = {"done",    "not_found", "refused",   "unavailable",
                                                     "timeout", "unusable",  "too_large", "cancelled"};
constexpr std::array<const char*, 3> kImports = {"done", "failed", "cancelled"};
const Histogram::BucketBoundaries kBuckets = {0.01, 0.03, 0.1, 0.3, 1, 2, 5, 10, 30, 60, 120, 300, 600};

}  // namespace

struct DicomMetrics::Impl {
  prometheus::Registry registry;

  using WebCounters = std::array<std::array<Counter*, kWebOutcomes.size()>, kWebRequests.size()>;

  WebCounters NewWebCounters() {
    auto& family = prometheus::BuildCounter()
                       .Name("intrawarp_dicomweb_requests_total")
                       .Help("DICOMweb searches and retrievals that archives were asked for, by the outcome.")
                       .Register(registry);
    WebCounters counters;
    for (size_t r = 0; r < kWebRequests.size(); ++r) {
      for (size_t o = 0; o < kWebOutcomes.size(); ++o) {
        counters[r][o] = &family.Add({{"request", kWebRequests[r]}, {"outcome", kWebOutcomes[o]}});
      }
    }
    return counters;
  }

  template <size_t N>
  std::array<Counter*, N> Counters(const char* name, const char* help, const std::array<const char*, N>& outcomes) {
    auto& family = prometheus::BuildCounter().Name(name).Help(help).Register(registry);
    std::array<Counter*, N> counters;
    for (size_t i = 0; i < N; ++i) counters[i] = &family.Add({{"outcome", outcomes[i]}});
    return counters;
  }
  Gauge* NewGauge(const char* name, const char* help) {
    return &prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add({});
  }

  const std::array<Counter*, 5> associations =
      Counters("intrawarp_dicom_associations_total", "DICOM associations, by how they ended.", kAssociations);
  const std::array<Counter*, 4> instances =
      Counters("intrawarp_dicom_instances_total", "DICOM instances received, by what became of them.", kInstances);
  Counter* const bytes = &prometheus::BuildCounter()
                              .Name("intrawarp_dicom_received_bytes_total")
                              .Help("Bytes of DICOM instances received.")
                              .Register(registry)
                              .Add({});
  const std::array<Counter*, 5> volumes =
      Counters("intrawarp_dicom_volumes_total", "Volumes of DICOM series received, by what became of them.", kVolumes);
  Histogram* const seconds = &prometheus::BuildHistogram()
                                  .Name("intrawarp_dicom_series_seconds")
                                  .Help("From a DICOM series' being complete to its volumes' being resident.")
                                  .Register(registry)
                                  .Add({}, kBuckets);
  const std::array<Counter*, 2> requests = Counters(
      "intrawarp_dicom_requests_total", "DICOM associations that archives were asked for, by the outcome.", kRequests);
  const WebCounters web_requests = NewWebCounters();
  const std::array<Counter*, 3> imports =
      Counters("intrawarp_dicom_imports_total", "Imports of series from archives, by how they ended.", kImports);
  Histogram* const import_seconds = &prometheus::BuildHistogram()
                                         .Name("intrawarp_dicom_import_seconds")
                                         .Help("From an import's first association to its volumes' being resident.")
                                         .Register(registry)
                                         .Add({}, kBuckets);
  Gauge* const importing = NewGauge("intrawarp_dicom_imports_running", "Imports of series that are under way.");
  Gauge* const waiting = NewGauge("intrawarp_dicom_imports_waiting", "Imports of series that wait for their turn.");
  Gauge* const open = NewGauge("intrawarp_dicom_associations", "Open DICOM associations.");
  Gauge* const open_most = NewGauge("intrawarp_dicom_associations_capacity", "DICOM associations that may be open.");
  Gauge* const spool = NewGauge("intrawarp_dicom_spool_used_bytes", "DICOM instances that are not volumes yet.");
  Gauge* const spool_most = NewGauge("intrawarp_dicom_spool_capacity_bytes", "Bytes that the DICOM spool may hold.");
  Gauge* const spooled = NewGauge("intrawarp_dicom_spool_instances", "DICOM instances that are not volumes yet.");
  Gauge* const made =
      NewGauge("intrawarp_dicom_spool_made_instances", "DICOM instances of volumes, which late images may complete.");
  Gauge* const unmade =
      NewGauge("intrawarp_dicom_spool_unmade_instances", "DICOM instances of which no volume could be made.");
};

DicomMetrics::DicomMetrics() : impl_(std::make_unique<Impl>()) {}
DicomMetrics::~DicomMetrics() = default;

void DicomMetrics::CountAssociation(AssociationOutcome outcome) {
  impl_->associations[static_cast<size_t>(outcome)]->Increment();
}

void DicomMetrics::CountInstance(InstanceOutcome outcome, int64_t bytes) {
  impl_->instances[static_cast<size_t>(outcome)]->Increment();
  impl_->bytes->Increment(static_cast<double>(bytes));
}

void DicomMetrics::CountVolume(DicomVolumeOutcome outcome) {
  impl_->volumes[static_cast<size_t>(outcome)]->Increment();
}

void DicomMetrics::CountRequest(RequestOutcome outcome) { impl_->requests[static_cast<size_t>(outcome)]->Increment(); }

void DicomMetrics::CountWebRequest(WebRequest request, WebOutcome outcome) {
  impl_->web_requests[static_cast<size_t>(request)][static_cast<size_t>(outcome)]->Increment();
}

void DicomMetrics::CountImport(ImportOutcome outcome, std::chrono::nanoseconds elapsed) {
  impl_->imports[static_cast<size_t>(outcome)]->Increment();
  if (outcome == ImportOutcome::kDone) {
    impl_->import_seconds->Observe(std::chrono::duration<double>(elapsed).count());
  }
}

void DicomMetrics::ObserveSeries(std::chrono::nanoseconds elapsed) {
  impl_->seconds->Observe(std::chrono::duration<double>(elapsed).count());
}

std::string DicomMetrics::Scrape(const DicomSample& sample) const {
  impl_->open->Set(static_cast<double>(sample.associations));
  impl_->open_most->Set(static_cast<double>(sample.max_associations));
  impl_->spool->Set(static_cast<double>(sample.spool_bytes));
  impl_->spool_most->Set(static_cast<double>(sample.max_spool_bytes));
  impl_->spooled->Set(static_cast<double>(sample.spool_instances));
  impl_->made->Set(static_cast<double>(sample.made_instances));
  impl_->unmade->Set(static_cast<double>(sample.unmade_instances));
  impl_->importing->Set(static_cast<double>(sample.imports_running));
  impl_->waiting->Set(static_cast<double>(sample.imports_waiting));
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, impl_->registry.Collect());
  return out.str();
}

}  // namespace intrawarp::server
