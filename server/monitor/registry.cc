// SPDX-License-Identifier: Apache-2.0
#include "server/monitor/registry.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <cassert>
#include <cmath>
#include <map>
#include <mutex>
#include <sstream>
#include <utility>

namespace intrawarp::server {

// The pointer of its type is set.
struct RegistryFamily {
  FamilyType type;
  std::string name;
  std::string help;
  std::vector<std::string> labels;
  prometheus::Family<prometheus::Counter>* counters = nullptr;
  prometheus::Family<prometheus::Gauge>* gauges = nullptr;
  prometheus::Family<prometheus::Histogram>* histograms = nullptr;

  prometheus::Labels With(const std::vector<std::string>& values) const {
    assert(values.size() == labels.size());
    prometheus::Labels with;
    for (size_t i = 0; i < labels.size(); ++i) {
      if (!values[i].empty()) with[labels[i]] = values[i];
    }
    return with;
  }

  std::vector<prometheus::MetricFamily> Collect() const {
    switch (type) {
      case FamilyType::kCounter:
        return counters->Collect();
      case FamilyType::kGauge:
        return gauges->Collect();
      case FamilyType::kHistogram:
        return histograms->Collect();
    }
    return {};
  }
};

namespace {

FamilyInfo::Series ToSeries(const prometheus::ClientMetric& metric, const std::vector<std::string>& labels) {
  FamilyInfo::Series series;
  for (const std::string& label : labels) {
    std::string value;
    for (const auto& pair : metric.label) {
      if (pair.name == label) value = pair.value;
    }
    series.values.push_back(std::move(value));
  }
  for (const auto& bucket : metric.histogram.bucket) {
    if (std::isfinite(bucket.upper_bound)) series.buckets.push_back(bucket.upper_bound);
  }
  return series;
}

}  // namespace

void Counter::Add(double amount) const {
  if (amount > 0) series_->Increment(amount);
}
void Counter::RaiseTo(double total) const { Add(total - series_->Value()); }
void Gauge::Set(double value) const { series_->Set(value); }
void Gauge::Add(double amount) const {
  if (amount > 0) return series_->Increment(amount);
  series_->Decrement(-amount);
}
void Histogram::Observe(double value) const { series_->Observe(value); }

Counter CounterFamily::With(const std::vector<std::string>& values) const {
  return Counter(&family_->counters->Add(family_->With(values)));
}

Gauge GaugeFamily::With(const std::vector<std::string>& values) const {
  return Gauge(&family_->gauges->Add(family_->With(values)));
}

Histogram HistogramFamily::With(const std::vector<std::string>& values, absl::Span<const double> buckets) const {
  const prometheus::Histogram::BucketBoundaries bounds(buckets.begin(), buckets.end());
  return Histogram(&family_->histograms->Add(family_->With(values), bounds));
}

struct Registry::Impl {
  prometheus::Registry registry{prometheus::Registry::InsertBehavior::Throw};
  mutable std::mutex families_mutex;
  std::vector<std::unique_ptr<const RegistryFamily>> families;  // guarded by families_mutex
  std::mutex scrape_mutex;                                      // held while a scrape is made
  std::map<int64_t, std::function<void()>> hooks;               // guarded by scrape_mutex
  int64_t next_hook = 0;                                        // guarded by scrape_mutex
};

Registry::Registry() : impl_(std::make_unique<Impl>()) {}
Registry::~Registry() = default;

const RegistryFamily* Registry::Add(FamilyType type, const char* name, const char* help,
                                    std::vector<std::string> labels) {
  auto family = std::make_unique<RegistryFamily>(RegistryFamily{type, name, help, std::move(labels)});
  switch (type) {
    case FamilyType::kCounter:
      family->counters = &prometheus::BuildCounter().Name(name).Help(help).Register(impl_->registry);
      break;
    case FamilyType::kGauge:
      family->gauges = &prometheus::BuildGauge().Name(name).Help(help).Register(impl_->registry);
      break;
    case FamilyType::kHistogram:
      family->histograms = &prometheus::BuildHistogram().Name(name).Help(help).Register(impl_->registry);
      break;
  }
  std::lock_guard<std::mutex> lock(impl_->families_mutex);
  return impl_->families.emplace_back(std::move(family)).get();
}

CounterFamily Registry::Counters(const char* name, const char* help, std::vector<std::string> labels) {
  return CounterFamily(Add(FamilyType::kCounter, name, help, std::move(labels)));
}

GaugeFamily Registry::Gauges(const char* name, const char* help, std::vector<std::string> labels) {
  return GaugeFamily(Add(FamilyType::kGauge, name, help, std::move(labels)));
}

HistogramFamily Registry::Histograms(const char* name, const char* help, std::vector<std::string> labels) {
  return HistogramFamily(Add(FamilyType::kHistogram, name, help, std::move(labels)));
}

Registry::Hook Registry::OnScrape(std::function<void()> set) {
  std::lock_guard<std::mutex> lock(impl_->scrape_mutex);
  const int64_t id = impl_->next_hook++;
  impl_->hooks.emplace(id, std::move(set));
  return Hook(this, id);
}

Registry::Hook& Registry::Hook::operator=(Hook&& other) noexcept {
  std::swap(registry_, other.registry_);
  std::swap(id_, other.id_);
  return *this;
}

Registry::Hook::~Hook() {
  if (registry_ == nullptr) return;
  std::lock_guard<std::mutex> lock(registry_->impl_->scrape_mutex);
  registry_->impl_->hooks.erase(id_);
}

std::string Registry::Scrape() const {
  std::lock_guard<std::mutex> lock(impl_->scrape_mutex);
  for (const auto& [id, set] : impl_->hooks) set();
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, impl_->registry.Collect());
  return out.str();
}

std::vector<FamilyInfo> Registry::Families() const {
  std::lock_guard<std::mutex> lock(impl_->families_mutex);
  std::vector<FamilyInfo> all;
  for (const auto& family : impl_->families) {
    FamilyInfo& info = all.emplace_back(FamilyInfo{family->name, family->type, family->help, family->labels, {}});
    for (const prometheus::MetricFamily& collected : family->Collect()) {
      for (const auto& metric : collected.metric) info.series.push_back(ToSeries(metric, family->labels));
    }
  }
  return all;
}

}  // namespace intrawarp::server
