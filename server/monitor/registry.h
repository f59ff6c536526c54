// SPDX-License-Identifier: Apache-2.0
// Registry: the one place where a server's metrics are declared, and the page that shows them in Prometheus' text
// format. A room that counts something declares its families in a class of its own (ROOM_metrics.h), which is made of a
// registry; the room counts through that class. This file is the only one that knows Prometheus' library.
//
// Names begin with intrawarp_, but for the vocabularies that dashboards know already: grpc_server_*
// (go-grpc-prometheus) and process_*. No label ever holds an id of a client's. A series is on the page from the moment
// when it is made: rooms make the series whose labels they know when they declare the family, so that these exist at 0.
//
// Thread safety: everything here is safe for concurrent use. A handle (Counter, Gauge, Histogram) is a pointer: cheap
// to copy, valid for as long as the registry. A counter or gauge is one atomic number; a histogram has a lock of its
// own for a few additions. Nobody who counts waits for a scrape's hooks. With() looks the series up under the family's
// lock: a room keeps the handles that it counts with often.
#ifndef INTRAWARP_SERVER_MONITOR_REGISTRY_H_
#define INTRAWARP_SERVER_MONITOR_REGISTRY_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace prometheus {

class Counter;
class Gauge;
class Histogram;

}  // namespace prometheus

namespace intrawarp::server {

struct RegistryFamily;

// Metrics of durations are in seconds.
inline double Seconds(std::chrono::nanoseconds duration) { return std::chrono::duration<double>(duration).count(); }

// A series that only grows. One made by default has no series, and is replaced before it is used.
class Counter {
 public:
  Counter() = default;
  // An amount below 0 is left out.
  void Add(double amount = 1) const;
  // For what is counted elsewhere: raises the series to `total`; a smaller one changes nothing. In a scrape.
  void RaiseTo(double total) const;

 private:
  friend class CounterFamily;
  explicit Counter(prometheus::Counter* series) : series_(series) {}
  prometheus::Counter* series_ = nullptr;
};

// A series that goes up and down. One made by default is like a Counter.
class Gauge {
 public:
  Gauge() = default;
  void Set(double value) const;
  void Add(double amount) const;

 private:
  friend class GaugeFamily;
  explicit Gauge(prometheus::Gauge* series) : series_(series) {}
  prometheus::Gauge* series_ = nullptr;
};

// A series of observations. One made by default is like a Counter.
class Histogram {
 public:
  Histogram() = default;
  void Observe(double value) const;

 private:
  friend class HistogramFamily;
  explicit Histogram(prometheus::Histogram* series) : series_(series) {}
  prometheus::Histogram* series_ = nullptr;
};

// Upper ends of buckets that several rooms use, in seconds. Frames and calls that are answered at once:
inline constexpr double kShortBuckets[] = {0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075,
                                           0.1,    0.15,  0.2,   0.3,   0.5,  0.75, 1,    2};
// Registrations, products and streams: up to an hour.
inline constexpr double kLongBuckets[] = {0.01, 0.03, 0.1, 0.3, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600};

// A family: all series of a name. With() gives the series with the values of the family's labels, in the order in which
// the labels were declared, and makes it at 0 when there is none yet. An empty value leaves its label out.
class CounterFamily {
 public:
  Counter With(const std::vector<std::string>& values) const;

 private:
  friend class Registry;
  explicit CounterFamily(const RegistryFamily* family) : family_(family) {}
  const RegistryFamily* family_;
};

class GaugeFamily {
 public:
  Gauge With(const std::vector<std::string>& values) const;

 private:
  friend class Registry;
  explicit GaugeFamily(const RegistryFamily* family) : family_(family) {}
  const RegistryFamily* family_;
};

class HistogramFamily {
 public:
  // The first call for a series decides its buckets.
  Histogram With(const std::vector<std::string>& values, absl::Span<const double> buckets) const;

 private:
  friend class Registry;
  explicit HistogramFamily(const RegistryFamily* family) : family_(family) {}
  const RegistryFamily* family_;
};

// A counter for each value of an enum, whose values are 0, 1, ...; all are made at once. `names` are the values of the
// family's last label in the order of the enum, `others` the values of the labels before it.
template <typename Enum>
class EnumCounters {
 public:
  EnumCounters() = default;
  EnumCounters(const CounterFamily& family, absl::Span<const char* const> names,
               const std::vector<std::string>& others = {}) {
    for (const char* name : names) {
      std::vector<std::string> values = others;
      values.emplace_back(name);
      counters_.push_back(family.With(values));
    }
  }
  const Counter& operator[](Enum value) const { return counters_[static_cast<size_t>(value)]; }

 private:
  std::vector<Counter> counters_;
};

enum class FamilyType { kCounter, kGauge, kHistogram };

// A family as its registry knows it, for whoever holds its metrics to a list.
struct FamilyInfo {
  struct Series {
    std::vector<std::string> values;  // of the labels; empty: left out
    std::vector<double> buckets;      // of a histogram, without the infinite one
  };
  std::string name;
  FamilyType type = FamilyType::kCounter;
  std::string help;
  std::vector<std::string> labels;
  // Made so far.
  std::vector<Series> series;
};

class Registry {
 public:
  // Keeps a function that is called for each scrape. When it goes, it waits for the scrape under way. Moves.
  class Hook {
   public:
    Hook() = default;
    Hook(Hook&& other) noexcept { *this = std::move(other); }
    Hook& operator=(Hook&& other) noexcept;
    ~Hook();

   private:
    friend class Registry;
    Hook(Registry* registry, int64_t id) : registry_(registry), id_(id) {}
    Registry* registry_ = nullptr;
    int64_t id_ = 0;
  };

  Registry();
  ~Registry();
  Registry(const Registry&) = delete;

  // Declares a family. A name is declared once; a second time is a mistake of the program, which it ends.
  CounterFamily Counters(const char* name, const char* help, std::vector<std::string> labels);
  GaugeFamily Gauges(const char* name, const char* help, std::vector<std::string> labels);
  HistogramFamily Histograms(const char* name, const char* help, std::vector<std::string> labels);
  // The same with the only series of a family without labels.
  Counter NewCounter(const char* name, const char* help) { return Counters(name, help, {}).With({}); }
  Gauge NewGauge(const char* name, const char* help) { return Gauges(name, help, {}).With({}); }
  Histogram NewHistogram(const char* name, const char* help, absl::Span<const double> buckets) {
    return Histograms(name, help, {}).With({}, buckets);
  }

  // `set` is called for each scrape, to set what mirrors a state kept elsewhere. One scrape at a time; it must not wait
  // for a device, nor for this registry. The registry outlives the hook.
  [[nodiscard]] Hook OnScrape(std::function<void()> set);

  // Calls the hooks, and gives the page: text exposition format 0.0.4, families that have a series.
  std::string Scrape() const;

  // In the order of their declaration. Calls no hook.
  std::vector<FamilyInfo> Families() const;

 private:
  struct Impl;
  const RegistryFamily* Add(FamilyType type, const char* name, const char* help, std::vector<std::string> labels);

  const std::unique_ptr<Impl> impl_;
};

// The value of the label device for what each device has its own of: its name; empty for the only one.
inline std::string DeviceLabel(const std::vector<std::string>& devices, size_t index) {
  return devices.size() > 1 ? devices[index] : "";
}

}  // namespace intrawarp::server

#endif  // INTRAWARP_SERVER_MONITOR_REGISTRY_H_
