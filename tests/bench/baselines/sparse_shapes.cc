// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/baselines/sparse_shapes.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <random>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/geometry/vec.h"
#include "io/format/matrix_market.h"
#include "tests/bench/sparse_generators.h"

namespace intrawarp::baselines {
namespace {

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  double Uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  int64_t Below(int64_t n) { return static_cast<int64_t>(Uniform() * n); }

 private:
  std::mt19937_64 engine_;
};

// Sorts rows, drops duplicates, gives values.
HostCsr<double> FromRows(std::vector<std::vector<int32_t>> rows, int32_t columns) {
  HostCsr<double> m;
  m.rows = static_cast<int32_t>(rows.size());
  m.columns = columns;
  for (std::vector<int32_t>& row : rows) {
    std::sort(row.begin(), row.end());
    row.erase(std::unique(row.begin(), row.end()), row.end());
    m.column_indices.insert(m.column_indices.end(), row.begin(), row.end());
    m.row_offsets.push_back(m.entries());
  }
  Random random(1);
  m.values.resize(m.column_indices.size());
  for (double& v : m.values) v = 0.5 + random.Uniform();
  return m;
}

HostCsr<double> FromRows(std::vector<std::vector<int32_t>> rows) {
  const auto columns = static_cast<int32_t>(rows.size());
  return FromRows(std::move(rows), columns);
}

std::vector<Int3> Neighbours(int reach, const std::function<bool(Int3)>& wanted) {
  std::vector<Int3> offsets;
  for (int z = -reach; z <= reach; ++z)
    for (int y = -reach; y <= reach; ++y)
      for (int x = -reach; x <= reach; ++x)
        if (wanted({x, y, z})) offsets.push_back({x, y, z});
  return offsets;
}

// Nodes of a grid coupled with their neighbours by full blocks.
HostCsr<double> Mesh(Int3 n, int block, const std::vector<Int3>& offsets) {
  std::vector<std::vector<int32_t>> rows(int64_t{n.x} * n.y * n.z * block);
  for (size_t r = 0; r < rows.size(); ++r) {
    const int node = static_cast<int>(r) / block;
    const int x = node % n.x, y = node / n.x % n.y, z = node / (n.x * n.y);
    for (const Int3 o : offsets) {
      const int i = x + o.x, j = y + o.y, k = z + o.z;
      if (i < 0 || j < 0 || k < 0 || i >= n.x || j >= n.y || k >= n.z) continue;
      for (int c = 0; c < block; ++c) rows[r].push_back(((k * n.y + j) * n.x + i) * block + c);
    }
  }
  return FromRows(std::move(rows));
}

HostCsr<double> Box(Int3 n, int block) {
  return Mesh(n, block, Neighbours(1, [](Int3) { return true; }));
}

// Six triangles about a node.
HostCsr<double> Triangles(Int3 n, int block) {
  return Mesh(n, block, Neighbours(1, [](Int3 o) { return o.z == 0 && o.x * o.y >= 0; }));
}

HostCsr<double> Ball(Int3 n, int square_of_radius) {
  return Mesh(n, 1, Neighbours(3, [&](Int3 o) { return o.x * o.x + o.y * o.y + o.z * o.z <= square_of_radius; }));
}

// Whole diagonals: the first two, and the others to both sides.
HostCsr<double> Diagonals(int n, const std::vector<int>& offsets) {
  std::vector<Int3> all;
  for (size_t i = 0; i < offsets.size(); ++i) all.push_back({offsets[i], 0, 0});
  for (size_t i = 2; i < offsets.size(); ++i) all.push_back({-offsets[i], 0, 0});
  return Mesh({n, 1, 1}, 1, all);
}

// States (i, j), i + j <= n, of an epidemic: one falls ill (i - 1, j + 1), recovers (i, j - 1), joins (i + 1, j).
HostCsr<double> Epidemic(int n) {
  std::vector<int32_t> first(n + 2, 0);
  for (int i = 0; i <= n; ++i) first[i + 1] = first[i] + n + 1 - i;
  std::vector<std::vector<int32_t>> rows;
  for (int i = 0; i <= n; ++i) {
    for (int j = 0; i + j <= n; ++j) {
      std::vector<int32_t> row = {first[i] + j};
      if (i > 0) row.push_back(first[i - 1] + j + 1);
      if (j > 0) row.push_back(first[i] + j - 1);
      if (i + j < n) row.push_back(first[i + 1] + j);
      rows.push_back(std::move(row));
    }
  }
  return FromRows(std::move(rows));
}

// The Dirac operator's hops on a periodic lattice of n^4 sites, four spins and three colours each. In the Dirac basis a
// hop in space couples a spin with itself and one of the other pair, a hop in time two spins each way.
HostCsr<double> Lattice(int n) {
  constexpr int kSpins = 4, kColours = 3;
  constexpr int kPartner[3][kSpins] = {{3, 2, 1, 0}, {3, 2, 1, 0}, {2, 3, 0, 1}};
  std::vector<std::vector<int32_t>> rows(n * n * n * n * kSpins * kColours);
  const auto couple = [](std::vector<int32_t>& row, int site, int spin) {
    for (int c = 0; c < kColours; ++c) row.push_back((site * kSpins + spin) * kColours + c);
  };
  for (size_t r = 0; r < rows.size(); ++r) {
    const int spin = static_cast<int>(r) / kColours % kSpins, site = static_cast<int>(r) / (kColours * kSpins);
    for (int axis = 0, stride = 1; axis < 4; ++axis, stride *= n) {
      const int at = site / stride % n;
      for (const int step : {1, n - 1}) {
        const int other = site + ((at + step) % n - at) * stride;
        if (axis < 3) couple(rows[r], other, spin);
        if (axis < 3) couple(rows[r], other, kPartner[axis][spin]);
        if (axis == 3 && (step == 1) == (spin < 2)) couple(rows[r], other, spin);
      }
    }
  }
  return FromRows(std::move(rows));
}

// Sets of `count` of the 3-subsets of {0 .. 12} that share nothing, in lexicographic order.
void DisjointTriples(const std::vector<int>& triples, size_t begin, int used, size_t count, std::vector<int>& chosen,
                     std::vector<std::vector<int>>& out) {
  if (chosen.size() == count) return out.push_back(chosen);
  for (size_t t = begin; t < triples.size(); ++t) {
    if (used & triples[t]) continue;
    chosen.push_back(static_cast<int>(t));
    DisjointTriples(triples, t + 1, used | triples[t], count, chosen, out);
    chosen.pop_back();
  }
}

// The boundaries of the 3-simplices of the matching complex of 3-subsets of 13 things. The original's order of rows and
// columns is another.
HostCsr<double> MatchingBoundary() {
  std::vector<int> triples;
  for (int a = 0; a < 13; ++a)
    for (int b = a + 1; b < 13; ++b)
      for (int c = b + 1; c < 13; ++c) triples.push_back(1 << a | 1 << b | 1 << c);
  std::vector<std::vector<int>> faces, simplices;
  std::vector<int> chosen;
  DisjointTriples(triples, 0, 0, 3, chosen, faces);
  DisjointTriples(triples, 0, 0, 4, chosen, simplices);
  std::map<std::vector<int>, int32_t> index;
  for (size_t i = 0; i < faces.size(); ++i) index[faces[i]] = static_cast<int32_t>(i);
  std::vector<std::vector<int32_t>> rows;
  for (const std::vector<int>& simplex : simplices) {
    std::vector<int32_t> row;
    for (int left_out = 0; left_out < 4; ++left_out) {
      std::vector<int> face = simplex;
      face.erase(face.begin() + left_out);
      row.push_back(index[face]);
    }
    rows.push_back(std::move(row));
  }
  return FromRows(std::move(rows), static_cast<int32_t>(faces.size()));
}

// `entries` places, uniform among a share of the nodes, as one has them in a list of citations or of peers.
HostCsr<double> Scattered(int rows, int64_t entries, double active) {
  Random random(1);
  const auto nodes = static_cast<int64_t>(rows * active);
  const double step = static_cast<double>(rows) / nodes;
  std::vector<std::vector<int32_t>> list(rows);
  for (int64_t e = 0; e < entries; ++e) {
    const auto r = static_cast<int32_t>(random.Below(nodes) * step),
               c = static_cast<int32_t>(random.Below(nodes) * step);
    list[r].push_back(c);
  }
  return FromRows(std::move(list));
}

// Pages in sites that lie together; the sizes of sites have a heavy tail. The first `hubs` pages of a site link to all
// of it and are linked by all of it, pages to `others` in their site, and some sites have every page link to every.
struct WebShape {
  int pages;
  double smallest, exponent;
  int largest, hubs;
  double others;
  double clique_chance;  // of a site
  int clique;            // its size
  int directory;         // links of each of five pages that link to pages anywhere
};
HostCsr<double> Web(const WebShape& shape) {
  Random random(1);
  std::vector<std::vector<int32_t>> rows(shape.pages);
  for (int first = 0; first < shape.pages;) {
    const bool clique = random.Uniform() < shape.clique_chance;
    const int wanted = clique
                           ? shape.clique
                           : static_cast<int>(std::min<double>(
                                 shape.largest, shape.smallest * std::pow(1 - random.Uniform(), -1 / shape.exponent)));
    const int size = std::min(wanted, shape.pages - first), hubs = clique ? size : std::min(shape.hubs, size);
    for (int i = 0; i < size; ++i) {
      std::vector<int32_t>& row = rows[first + i];
      for (int j = 0; j < (i < hubs ? size : hubs); ++j) row.push_back(first + j);
      if (i < hubs) continue;
      const int others = static_cast<int>(shape.others + random.Uniform());
      for (int k = 0; k < others; ++k) row.push_back(first + static_cast<int32_t>(random.Below(size)));
    }
    first += size;
  }
  for (int i = 0; i < 5; ++i) {
    std::vector<int32_t>& row = rows[random.Below(shape.pages)];
    for (int j = 0; j < shape.directory; ++j) row.push_back(static_cast<int32_t>(random.Below(shape.pages)));
  }
  return FromRows(std::move(rows));
}

}  // namespace

const std::vector<PaperMatrix>& PaperMatrices() {
  static const auto* const matrices = new std::vector<PaperMatrix>{
      {"mc2depi", 525825, 2100225, 5245952, 8391680, 718228, 1620780, [] { return Epidemic(1024); }},
      {"qcd5_4", 49152, 1916928, 10911744, 74760192, 477184, 2004992, [] { return Lattice(8); }, true},
      {"rma10", 46835, 2374001, 7900917, 156480259, 234561, 2023575,
       [] {
         return Box({88, 89, 2}, 3);
       }},
      {"webbase-1M", 1000005, 3105536, 51111996, 69524195, 2546355, 7540274,
       [] {
         return Web({1000005, 3, 1.3, 300, 1, 1.25, .0003, 60, 4700});
       }},
      {"ca-CondMat", 23133, 186936, 2355437, 4127524, 1787564, 13629092, nullptr},
      {"cage12", 130228, 2032536, 15231874, 34610826, 2945653, 15390213,
       [] {
         return Diagonals(130228, {0, 5, 1, 3, 19, 131, 517, 2203, 4601});
       }},
      {"dawson5", 51537, 1010777, 3616737, 21284355, 219077, 2078495,
       [] {
         return Triangles({131, 131, 1}, 3);
       }},
      {"lock1074", 1074, 51588, 134676, 2752056, 3050, 21170, nullptr},
      {"m133-b3", 200200, 800800, 3165861, 3203200, 1591414, 4912984, MatchingBoundary},
      {"p2p-Gnutella31", 62586, 147892, 537601, 538318, 361039, 1501316, [] { return Scattered(62586, 147892, .65); }},
      {"patents_main", 240547, 560943, 2281308, 2604790, 2089143, 11688648,
       [] { return Scattered(240547, 560943, .5); }},
      {"wiki-Vote", 8297, 103689, 1831112, 4542805, 526421, 7261770, nullptr},
      {"bcsstk30", 28924, 2043492, 8946070, 173481412, 252076, 1925418,
       [] {
         return Box({21, 21, 21}, 3);
       }},
      {"nemeth21", 9506, 1173746, 2578720, 146859992, 47341, 526143, [] { return Band(9506, 61, 1); }},
      {"pcrystk03", 24696, 1751178, 7240266, 129128312, 212471, 1876143,
       [] {
         return Box({20, 20, 20}, 3);
       }},
      {"ct20stif", 52329, 2698463, 10016951, 154237335, 323396, 2366028,
       [] {
         return Box({93, 94, 2}, 3);
       }},
      {"pkustk06", 43164, 2571768, 10596384, 179924544, 451380, 3641052,
       [] {
         return Box({69, 70, 3}, 3);
       }},
      {"pli", 22695, 1350309, 8548665, 99698581, 292851, 2721449,
       [] {
         return Ball({28, 28, 29}, 6);
       }},
      {"qa8fk", 66127, 1660579, 7351189, 42857197, 443738, 2867240,
       [] {
         return Box({40, 40, 41}, 1);
       }},
      {"struct3", 53570, 1173694, 3400384, 26704476, 146007, 583547,
       [] {
         return Triangles({133, 134, 1}, 3);
       }},
      {"web-NotreDame", 325729, 1497134, 16801350, 64593748, 693759, 3216627,
       [] {
         return Web({325729, 3, 1.3, 300, 2, .8, .00015, 163, 3445});
       }},
  };
  return *matrices;
}

absl::StatusOr<HostCsr<double>> LoadPaperMatrix(const PaperMatrix& matrix, const std::string& folder, bool* from_file) {
  for (const char* ending : {".mtx", ".mtx.gz"}) {
    const std::filesystem::path path = std::filesystem::path(folder) / (matrix.name + ending);
    *from_file = !folder.empty() && std::filesystem::exists(path);
    if (!*from_file) continue;
    INTRAWARP_ASSIGN_OR_RETURN(const HostCoo coo, io::ReadMatrixMarket(path.string()));
    return CsrFromCoo<double>(coo);
  }
  if (matrix.make == nullptr) return absl::NotFoundError("no file");
  return matrix.make();
}

}  // namespace intrawarp::baselines
