// SPDX-License-Identifier: Apache-2.0
#include "tests/accuracy/field_scenes.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>

#include "absl/strings/str_cat.h"
#include "engine/image/sample.h"
#include "engine/transform/displacement.h"
#include "io/format/nifti.h"
#include "io/format/points.h"

namespace intrawarp::fields {

const std::vector<double> kFieldsMm = {15, 25, 40, 60, 100, 160, 250, 400};

namespace {

// Positions within a field are in its sides: -0.5 to 0.5 on each axis.
using Value = std::function<double(Vec3d)>;
using Map = std::function<Vec3d(Vec3d)>;

constexpr int kSides[] = {28, 40, 52, 34, 46};
constexpr double kNoise = 0.02;
constexpr double kHidden = 0.03;

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  double Within(double low, double high) { return low + (high - low) * (engine_() - engine_.min()) * 0x1p-32; }
  Vec3d Vector(double most) { return {Within(-most, most), Within(-most, most), Within(-most, most)}; }
  Vec3d Direction() {
    for (;;) {
      const Vec3d v = Vector(1);
      const double length = std::sqrt(Dot(v, v));
      if (length > 0.1 && length < 1) return (1 / length) * v;
    }
  }
  int Below(int count) { return static_cast<int>(Within(0, count)); }
  uint32_t Seed() { return static_cast<uint32_t>(engine_()); }

 private:
  std::mt19937 engine_;
};

double Length(Vec3d v) { return std::sqrt(Dot(v, v)); }

// --- Scenes: values of about 0 to 2 in a field ---

struct Outline {
  Vec3d axes{0.42, 0.38, 0.4};
  // 1 inside, 0 outside, over an edge of about a twentieth of the body.
  double operator()(Vec3d p) const {
    const double r = Length({p.x / axes.x, p.y / axes.y, p.z / axes.z});
    return 1 / (1 + std::exp((r - 1) / 0.02));
  }
};

Outline RandomOutline(Random& random) {
  return {{random.Within(0.3, 0.45), random.Within(0.3, 0.45), random.Within(0.3, 0.45)}};
}

Value Blobs(Random& random, const Outline& outline, int count) {
  struct Blob {
    Vec3d centre;
    double width, height;
  };
  std::vector<Blob> blobs;
  for (int i = 0; i < count; ++i) {
    blobs.push_back({random.Vector(0.35), random.Within(0.04, 0.14), random.Within(-0.8, 0.8)});
  }
  return [=](Vec3d p) {
    double value = 1;
    for (const Blob& blob : blobs) {
      const Vec3d d = p - blob.centre;
      value += blob.height * std::exp(-0.5 * Dot(d, d) / (blob.width * blob.width));
    }
    return value * outline(p);
  };
}

double Hashed(int x, int y, int z, uint32_t seed) {
  uint32_t h = seed ^ (static_cast<uint32_t>(x) * 0x8da6b343u) ^ (static_cast<uint32_t>(y) * 0xd8163841u) ^
               (static_cast<uint32_t>(z) * 0xcb1ab31fu);
  h = (h ^ (h >> 15)) * 0x2c1b3c6du;
  h = (h ^ (h >> 12)) * 0x297a2d39u;
  return (h ^ (h >> 15)) * 0x1p-31 - 1;
}

// Random values at the corners of cubes of which `cells` fill the field, interpolated.
double LatticeNoise(Vec3d p, double cells, uint32_t seed) {
  const Vec3d q = cells * p;
  const Vec3d low{std::floor(q.x), std::floor(q.y), std::floor(q.z)}, part = q - low;
  const auto smooth = [](double t) { return t * t * (3 - 2 * t); };
  double value = 0;
  for (int corner = 0; corner < 8; ++corner) {
    double weight = 1;
    int at[3];
    for (int a = 0; a < 3; ++a) {
      const int far = corner >> a & 1;
      at[a] = static_cast<int>(low[a]) + far;
      weight *= far != 0 ? smooth(part[a]) : 1 - smooth(part[a]);
    }
    value += weight * Hashed(at[0], at[1], at[2], seed);
  }
  return value;
}

// Structure of three sizes.
Value Texture(Random& random) {
  const uint32_t seed = random.Seed();
  return [seed](Vec3d p) {
    return 1 + 0.5 * LatticeNoise(p, 5, seed) + 0.3 * LatticeNoise(p, 10, seed + 1) +
           0.2 * LatticeNoise(p, 18, seed + 2);
  };
}

Value InOutline(Value inside, Outline outline) {
  return [=](Vec3d p) { return inside(p) * outline(p); };
}

// A crop of a source whose voxels are voxels of the field. Its middle has structure.
struct Crop {
  std::shared_ptr<const Image> image;
  Vec3d middle;
  double side = 0;  // voxels of the source
  double scale = 1;

  double operator()(Vec3d p) const {
    Vec3d index = middle + side * p;
    for (int a = 0; a < 3; ++a) index[a] = std::clamp(index[a], 0.0, image->grid.size[a] - 1.0);
    return scale * SampleLinear(image->voxels.data(), image->grid.size, ToVec3f(index));
  }
};

double DeviationIn(const Crop& crop) {
  double sum = 0, squares = 0;
  int count = 0;
  for (double z = -0.45; z < 0.5; z += 0.1) {
    for (double y = -0.45; y < 0.5; y += 0.1) {
      for (double x = -0.45; x < 0.5; x += 0.1, ++count) {
        const double v = crop({x, y, z});
        sum += v;
        squares += v * v;
      }
    }
  }
  return std::sqrt(std::max(0.0, squares / count - sum / count * (sum / count)));
}

Crop RandomCrop(Random& random, const Source& source, double side) {
  const std::shared_ptr<const Image> image(std::shared_ptr<void>(), &source.image);
  const Int3 n = source.image.grid.size;
  Crop best{image, {}, side};
  double most = -1;
  // The one of a few places with most structure: air is not an image.
  for (int i = 0; i < 6; ++i) {
    Crop crop{image, {}, side};
    for (int a = 0; a < 3; ++a) {
      const double margin = std::min(0.5 * side, 0.5 * (n[a] - 1));
      crop.middle[a] = random.Within(margin, n[a] - 1 - margin);
    }
    const double deviation = DeviationIn(crop);
    if (deviation <= most) continue;
    most = deviation;
    best = crop;
  }
  best.scale = most > 0 ? 0.5 / most : 1;
  return best;
}

// --- Maps within a field ---

Map RandomRigid(Random& random, double most_degrees, double most_shift) {
  const Vec3d axis = random.Direction(), shift = random.Within(0.3, 1) * most_shift * random.Direction();
  const double angle = random.Within(0.3, 1) * most_degrees * M_PI / 180, c = std::cos(angle), s = std::sin(angle);
  return [=](Vec3d p) {
    const Vec3d cross{axis.y * p.z - axis.z * p.y, axis.z * p.x - axis.x * p.z, axis.x * p.y - axis.y * p.x};
    return c * p + s * cross + (1 - c) * Dot(axis, p) * axis + shift;
  };
}

Map RandomBend(Random& random, double most) {
  struct Bell {
    Vec3d centre, way;
    double width;
  };
  std::vector<Bell> bells;
  for (int i = 0; i < 5; ++i) bells.push_back({random.Vector(0.3), random.Vector(most), random.Within(0.14, 0.22)});
  const Map rigid = RandomRigid(random, 5, 0.04);
  return [=](Vec3d p) {
    Vec3d q = p;
    for (const Bell& bell : bells) {
      const Vec3d d = p - bell.centre;
      q = q + std::exp(-0.5 * Dot(d, d) / (bell.width * bell.width)) * bell.way;
    }
    return rigid(q);
  };
}

// --- Images ---

Geometry CubeGrid(int side, double field_mm) {
  Geometry grid;
  grid.size = {side, side, side};
  const double spacing = field_mm / side, first = 0.5 * spacing - 0.5 * field_mm;
  grid.spacing = {spacing, spacing, spacing};
  grid.origin = {first, first, first};
  return grid;
}

template <typename Body>
void ForEachVoxel(const Geometry& grid, const Body& body) {
  const AffineMap to_physical = IndexToPhysical(grid);
  int64_t i = 0;
  for (int z = 0; z < grid.size.z; ++z) {
    for (int y = 0; y < grid.size.y; ++y) {
      for (int x = 0; x < grid.size.x; ++x) body(i++, to_physical({double(x), double(y), double(z)}));
    }
  }
}

Image Drawn(const Geometry& grid, double field_mm, const Value& value) {
  Image image{grid, std::vector<float>(grid.voxels())};
  ForEachVoxel(grid,
               [&](int64_t i, Vec3d p) { image.voxels[i] = static_cast<float>(100 * value((1 / field_mm) * p)); });
  return image;
}

void AddNoise(Image& image, double deviation, uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> noise(0, 100 * deviation);
  for (float& v : image.voxels) v += static_cast<float>(noise(engine));
}

// The mean with the neighbours along each axis.
Image Smoothed(const Image& image) {
  Image out = image;
  const Int3 n = image.grid.size;
  const int64_t strides[3] = {1, n.x, int64_t{n.x} * n.y};
  for (int a = 0; a < 3; ++a) {
    const std::vector<float> in = out.voxels;
    for (int64_t i = 0; i < static_cast<int64_t>(in.size()); ++i) {
      const int at = static_cast<int>(i / strides[a] % n[a]);
      const float below = in[i - (at > 0 ? strides[a] : 0)], above = in[i + (at + 1 < n[a] ? strides[a] : 0)];
      out.voxels[i] = 0.25f * below + 0.5f * in[i] + 0.25f * above;
    }
  }
  return out;
}

// Which places an image shows.
using Shown = std::function<bool(Vec3d)>;

void Hide(Image& image, double field_mm, const Shown& shown) {
  ForEachVoxel(image.grid, [&](int64_t i, Vec3d p) {
    if (!shown((1 / field_mm) * p)) image.voxels[i] *= static_cast<float>(kHidden);
  });
}

Shown Everything() {
  return [](Vec3d) { return true; };
}

// The part on one side of a plane.
Shown BesidePlane(Random& random, double offset) {
  const Vec3d normal = random.Direction();
  return [=](Vec3d p) { return Dot(normal, p) > offset; };
}

// All but a cone from the middle of one face: the shadow of a bone in ultrasound.
Shown OutOfShadow(Random& random) {
  const Vec3d tip{random.Within(-0.2, 0.2), random.Within(-0.2, 0.2), -0.3};
  const double slope = random.Within(0.5, 0.8);
  return [=](Vec3d p) {
    const Vec3d d = p - tip;
    return d.z < 0 || std::hypot(d.x, d.y) > 0.05 + slope * d.z;
  };
}

bool IsInField(Vec3d p) { return std::abs(p.x) < 0.5 && std::abs(p.y) < 0.5 && std::abs(p.z) < 0.5; }

struct Drawing {
  Value scene;
  Map map;
  // Where the scene has a body.
  std::function<bool(Vec3d)> body;
};

// fixed(p) = scene(map(p)), moving(p) = scene(p), with noise of their own.
Pair DrawPair(Random& random, int side, double field_mm, const Drawing& drawing, const Shown& fixed_shown,
              const Shown& moving_shown) {
  const Geometry grid = CubeGrid(side, field_mm);
  Pair pair;
  pair.field_mm = field_mm;
  pair.fixed = Drawn(grid, field_mm, [&](Vec3d p) { return drawing.scene(drawing.map(p)); });
  pair.moving = Drawn(grid, field_mm, drawing.scene);
  Hide(pair.fixed, field_mm, fixed_shown);
  Hide(pair.moving, field_mm, moving_shown);
  AddNoise(pair.fixed, kNoise, random.Seed());
  AddNoise(pair.moving, kNoise, random.Seed());
  ForEachVoxel(grid, [&](int64_t i, Vec3d p) {
    if (i % 7 != 0) return;
    const Vec3d q = (1 / field_mm) * p, there = drawing.map(q);
    if (!IsInField(there) || !drawing.body(there) || !fixed_shown(q) || !moving_shown(there)) return;
    pair.places.push_back(p);
    pair.mapped.push_back(field_mm * there);
  });
  return pair;
}

Drawing Related(Random& random, const Value& scene, bool bent) {
  return {scene, bent ? RandomBend(random, 0.05) : RandomRigid(random, 10, 0.08), [](Vec3d) { return true; }};
}

Drawing InBody(Drawing drawing, const Outline& outline) {
  drawing.body = [outline](Vec3d p) { return outline(p) > 0.5; };
  return drawing;
}

// A crop varies by more than a fifth of its deviation around these places.
Drawing InStructure(Drawing drawing) {
  drawing.body = [scene = drawing.scene](Vec3d p) {
    constexpr double kStep = 0.03;
    double low = scene(p), high = low;
    for (int a = 0; a < 3; ++a) {
      for (const double step : {-kStep, kStep}) {
        Vec3d q = p;
        q[a] += step;
        low = std::min(low, scene(q));
        high = std::max(high, scene(q));
      }
    }
    return high - low > 0.1;
  };
  return drawing;
}

Drawing Real(Random& random, const std::vector<Source>& sources, int side, bool bent) {
  const Source& source = sources[random.Below(static_cast<int>(sources.size()))];
  return InStructure(Related(random, RandomCrop(random, source, side), bent));
}

Pair Familiar(Random& random, const std::vector<Source>& sources, const std::string& family, int side,
              double field_mm) {
  const Outline outline = RandomOutline(random);
  const Shown all = Everything();
  const auto draw = [&](const Drawing& drawing) { return DrawPair(random, side, field_mm, drawing, all, all); };
  if (family == "blobs") return draw(InBody(Related(random, Blobs(random, outline, 14), false), outline));
  if (family == "texture") return draw(Related(random, Texture(random), false));
  if (family == "texture, bent") {
    return draw(InBody(Related(random, InOutline(Texture(random), outline), true), outline));
  }
  if (family == "smooth, bent") return draw(InBody(Related(random, Blobs(random, outline, 3), true), outline));
  if (family == "crop") return draw(Real(random, sources, side, false));
  if (family == "crop, bent") return draw(Real(random, sources, side, true));
  if (family == "crop, other gain") {
    Pair pair = draw(Real(random, sources, side, true));
    for (float& v : pair.fixed.voxels) v = 0.6f * v + 40;
    return pair;
  }
  if (family == "crop, inverted") {
    Pair pair = draw(Real(random, sources, side, false));
    for (float& v : pair.fixed.voxels) v = 300 - 0.7f * v;
    return pair;
  }
  if (family == "fixed half black") {
    return DrawPair(random, side, field_mm, Real(random, sources, side, true), BesidePlane(random, 0), all);
  }
  if (family == "moving half black") {
    return DrawPair(random, side, field_mm, Real(random, sources, side, true), all, BesidePlane(random, 0));
  }
  if (family == "35 % cut away") {
    return DrawPair(random, side, field_mm, Real(random, sources, side, true), BesidePlane(random, -0.15), all);
  }
  if (family == "shadow") {
    return DrawPair(random, side, field_mm, Real(random, sources, side, true), OutOfShadow(random), all);
  }
  if (family == "body half black") {
    const Drawing drawing = InBody(Related(random, InOutline(Texture(random), outline), true), outline);
    return DrawPair(random, side, field_mm, drawing, BesidePlane(random, 0), all);
  }
  std::fprintf(stderr, "no family %s\n", family.c_str());
  std::exit(2);
}

// The second of a pair of images with nothing in common, or the first.
Image Strange(Random& random, const std::vector<Source>& sources, const std::string& family, int side, double field_mm,
              int source, const Outline& shared) {
  const Geometry grid = CubeGrid(side, field_mm);
  Value value;
  if (family == "blobs") value = Blobs(random, RandomOutline(random), 14);
  if (family == "blobs, one outline") value = Blobs(random, shared, 14);
  if (family == "texture") value = Texture(random);
  if (family == "texture, one outline") value = InOutline(Texture(random), shared);
  if (family == "crops") value = RandomCrop(random, sources[source], side);
  if (value == nullptr) value = [](Vec3d) { return 1.0; };
  const bool is_noise = family == "noise" || family == "smooth noise";
  Image image = Drawn(grid, field_mm, value);
  AddNoise(image, is_noise ? 0.3 : kNoise, random.Seed());
  if (family == "smooth noise") image = Smoothed(Smoothed(image));
  return image;
}

int SideOf(int number) { return kSides[number % std::size(kSides)]; }

}  // namespace

Image ReadImage(const std::string& path) {
  const absl::StatusOr<io::HostVolume> volume = io::ReadNifti(path);
  if (!volume.ok()) {
    std::fprintf(stderr, "%s: %s\n", path.c_str(), volume.status().ToString().c_str());
    std::exit(1);
  }
  return {volume->geometry, io::ToFloat(*volume)};
}

std::vector<Source> ReadSources(const std::string& data) {
  const std::pair<const char*, const char*> files[] = {
      {"head", "multimodal_chris/chris_t1.nii.gz"},
      {"abdomen", "abdomen_ct_totalseg/example_ct.nii.gz"},
      {"liver", "liver_4dmri_eth/dataset18/exhMaster.nii.gz"},
      {"prostate", "prostate_mr_deepreg/image0.nii.gz"},
      {"ultrasound", "prostate_mr_us/case000025_us_image.nii.gz"},
      {"mouse heart", "fair/mice3D_R.nii.gz"},
      {"brain", "brain_t1_claire/brain01.nii.gz"},
  };
  std::vector<Source> sources;
  for (const auto& [anatomy, file] : files) {
    sources.push_back({anatomy, ReadImage(absl::StrCat(data, "/reg3d/", file))});
  }
  return sources;
}

std::vector<std::string> UnrelatedFamilies() {
  return {"blobs, one outline", "blobs",  "crops", "texture", "texture, one outline", "crops", "noise",
          "smooth noise",       "metres", "flat",  "tiny"};
}

std::vector<std::string> KnownFamilies() {
  return {"blobs",         "texture",          "texture, bent",  "smooth, bent",     "crop",
          "crop, bent",    "crop, other gain", "crop, inverted", "fixed half black", "moving half black",
          "35 % cut away", "shadow",           "body half black"};
}

Pair MakeUnrelated(const std::vector<Source>& sources, int number) {
  const std::vector<std::string> families = UnrelatedFamilies();
  const std::string& family = families[number % families.size()];
  Random random(0x5eed0000u + static_cast<uint32_t>(number));
  const double field_mm = kFieldsMm[number / families.size() % kFieldsMm.size()];
  const int side = family == "tiny" ? 8 + number % 8 : SideOf(number);
  if (family == "metres") {
    // One image and its like, of which one header is in metres.
    Pair pair = DrawPair(random, side, field_mm, Real(random, sources, side, false), Everything(), Everything());
    Geometry& grid = number / families.size() % 2 == 0 ? pair.fixed.grid : pair.moving.grid;
    grid.spacing = 0.001 * grid.spacing;
    grid.origin = 0.001 * grid.origin;
    return {family, field_mm, std::move(pair.fixed), std::move(pair.moving), {}, {}};
  }
  const Outline shared = RandomOutline(random);
  const int first = random.Below(static_cast<int>(sources.size()));
  const int second =
      (first + 1 + random.Below(static_cast<int>(sources.size()) - 1)) % static_cast<int>(sources.size());
  const std::string look = family == "tiny" ? "blobs" : family;
  Pair pair{family,
            field_mm,
            Strange(random, sources, look, side, field_mm, first, shared),
            Strange(random, sources, look, side, field_mm, second, shared),
            {},
            {}};
  if (family == "flat") {
    // Constant but for noise, or altogether.
    const bool is_constant = number / families.size() % 2 == 0;
    for (Image* image : {&pair.fixed, &pair.moving}) {
      if (is_constant) std::fill(image->voxels.begin(), image->voxels.end(), 100.0f);
    }
  }
  return pair;
}

Pair MakeKnown(const std::vector<Source>& sources, int number) {
  const std::vector<std::string> families = KnownFamilies();
  const std::string& family = families[number % families.size()];
  Random random(0x600d0000u + static_cast<uint32_t>(number));
  const double field_mm = kFieldsMm[number / families.size() % kFieldsMm.size()];
  Pair pair = Familiar(random, sources, family, SideOf(number), field_mm);
  pair.family = family;
  return pair;
}

Pair ReadLivers(const std::string& data, int number) {
  const char* const states[2][3] = {{"exhMaster", "cyc_1_10", "cyc_3_10"}, {"exhMaster", "cyc_1_6", "cyc_4_7"}};
  const int subject = number / 6 % 2, fixed = number % 6 / 2, moving = (fixed + 1 + number % 2) % 3;
  const auto path = [&](int state, const char* ending) {
    return absl::StrCat(data, "/reg3d/liver_4dmri_eth/dataset", subject == 0 ? "18/" : "26/", states[subject][state],
                        ending);
  };
  const auto points = [&](int state) {
    const absl::StatusOr<std::vector<Vec3d>> read = io::ReadPoints(path(state, "_landmarks_liver.csv"));
    return read.ok() ? *read : std::vector<Vec3d>();
  };
  Pair pair;
  pair.family = "livers";
  pair.fixed = ReadImage(path(fixed, ".nii.gz"));
  pair.moving = ReadImage(path(moving, ".nii.gz"));
  pair.field_mm = pair.fixed.grid.size.x * pair.fixed.grid.spacing.x;
  pair.places = points(fixed);
  pair.mapped = points(moving);
  return pair;
}

}  // namespace intrawarp::fields
