// SPDX-License-Identifier: Apache-2.0
#include "io/picture/montage.h"

#include <png.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include "io/picture/canvas.h"
#include "tests/engine/device_test.h"
#include "tests/io/io_test.h"

namespace intrawarp::io {
namespace {

using PngTest = FileTest;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Picture ReadPng(const std::string& path) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  EXPECT_TRUE(png_image_begin_read_from_file(&image, path.c_str())) << image.message;
  EXPECT_EQ(image.format & PNG_FORMAT_FLAG_ALPHA, 0u);
  image.format = PNG_FORMAT_RGB;
  Picture picture{static_cast<int>(image.width), static_cast<int>(image.height), {}};
  picture.pixels.resize(PNG_IMAGE_SIZE(image));
  EXPECT_TRUE(png_image_finish_read(&image, nullptr, picture.pixels.data(), 0, nullptr));
  return picture;
}

TEST_F(PngTest, PicturesComeBackAndEqualOnesAreEqualBytes) {
  Picture picture{37, 21, {}};
  for (int i = 0; i < 3 * 37 * 21; ++i) picture.pixels.push_back(static_cast<uint8_t>(i * 7));
  ASSERT_THAT(WritePng(Path("p.png"), picture), Succeeds());
  const Picture read = ReadPng(Path("p.png"));
  EXPECT_EQ(read.width, 37);
  EXPECT_EQ(read.height, 21);
  EXPECT_EQ(read.pixels, picture.pixels);
  ASSERT_THAT(WritePng(Path("q.png"), picture), Succeeds());
  EXPECT_EQ(Get(Path("p.png")), Get(Path("q.png")));
}

TEST_F(PngTest, Refuses) {
  const Picture good{2, 2, std::vector<uint8_t>(12, 9)};
  Picture bad = good;
  bad.pixels.pop_back();
  EXPECT_THAT(WritePng(Path("p.png"), bad), Fails(kInvalid, "picture: the number of bytes"));
  bad = good;
  bad.width = 0;
  EXPECT_THAT(WritePng(Path("p.png"), bad), Fails(kInvalid, "picture: 0x2"));
  bad.width = 32768;
  EXPECT_THAT(WritePng(Path("p.png"), bad), Fails(kInvalid, "picture: 32768x2 must be 1 to 32767"));
  EXPECT_FALSE(std::filesystem::exists(Path("p.png")));
  EXPECT_THAT(WritePng("/dev/full", good), Fails(absl::StatusCode::kResourceExhausted, "file: "));
}

using Rgb = std::array<int, 3>;
Rgb At(const Picture& p, int x, int y) {
  const uint8_t* pixel = p.pixels.data() + 3 * (size_t(y) * p.width + x);
  return {pixel[0], pixel[1], pixel[2]};
}

constexpr Color kBlack{}, kWhite{1, 1, 1};

// The least box around the pixels that are not black.
struct Box {
  int left = 1 << 20, top = 1 << 20, right = -1, bottom = -1;
};
Box BoxOf(const Picture& p) {
  Box box;
  for (int y = 0; y < p.height; ++y) {
    for (int x = 0; x < p.width; ++x) {
      if (At(p, x, y) == Rgb{0, 0, 0}) continue;
      box = {std::min(box.left, x), std::min(box.top, y), std::max(box.right, x), std::max(box.bottom, y)};
    }
  }
  return box;
}

Picture Line(absl::string_view text, Font font, int x = 10, int y = 10) {
  Canvas canvas(200, 60, kBlack);
  canvas.Text(x, y, text, font, kWhite);
  return *canvas.Finish();
}

TEST(CanvasTest, TextLiesInTheBoxThatItIsMeasuredAt) {
  for (const Font font : {Font{11}, Font{24, true}}) {
    const double width = Canvas::TextWidth("Hxg", font), height = Canvas::LineHeight(font);
    const Box box = BoxOf(Line("Hxg", font));
    EXPECT_GE(box.left, 10);
    EXPECT_GE(box.top, 10);
    EXPECT_LE(box.right, 10 + width + 1);
    EXPECT_LE(box.bottom, 10 + height + 1);
    // It fills most of the box.
    EXPECT_GT(box.right - box.left, 0.8 * width);
    EXPECT_GT(box.bottom - box.top, 0.6 * height);
  }
  EXPECT_EQ(Canvas::TextWidth("", Font{11}), 0);
  EXPECT_NEAR(Canvas::TextWidth("\u00d7", Font{24}), Canvas::TextWidth("x", Font{24}), 10) << "one sign of two bytes";
}

TEST(CanvasTest, LettersAreThemselves) {
  const Font font{16};
  EXPECT_EQ(Line("B", font).pixels, Line("B", font).pixels);
  EXPECT_NE(Line("B", font).pixels, Line("8", font).pixels);
  EXPECT_NE(Line("a", font).pixels, Line("A", font).pixels);
  EXPECT_NE(Line("B", font).pixels, Line("B", {16, true}).pixels);
}

TEST(CanvasTest, WhatLiesOutsideIsLeftOut) {
  EXPECT_EQ(BoxOf(Line("M", {16}, 300, 10)).right, -1);
  EXPECT_EQ(BoxOf(Line("M", {16}, 10, -100)).right, -1);
  Canvas canvas(4, 4, kBlack);
  canvas.Paint(3, 3, Picture{2, 2, std::vector<uint8_t>(12, 200)});
  const Picture picture = *canvas.Finish();
  EXPECT_EQ(At(picture, 3, 3), (Rgb{200, 200, 200}));
  EXPECT_EQ(At(picture, 2, 3), (Rgb{0, 0, 0}));
}

TEST(CanvasTest, FillsWholePixelsAndPaintsExactly) {
  Canvas canvas(6, 5, kBlack);
  canvas.Fill(1, 2, 3, 2, {1, 0, 0});
  const Picture source{2, 1, {10, 20, 30, 40, 50, 60}};
  canvas.Paint(4, 0, source);
  const Picture picture = *canvas.Finish();
  for (int y = 0; y < 5; ++y) {
    for (int x = 0; x < 4; ++x) EXPECT_EQ(At(picture, x, y)[0], x >= 1 && y >= 2 && y < 4 ? 255 : 0) << x << " " << y;
  }
  EXPECT_EQ(At(picture, 4, 0), (Rgb{10, 20, 30}));
  EXPECT_EQ(At(picture, 5, 0), (Rgb{40, 50, 60}));
}

TEST(CanvasTest, TextOnAnImageHasADarkRim) {
  Canvas canvas(60, 40, kWhite);
  canvas.TextOnImage(10, 5, "R", {24, true}, kWhite);
  const Picture picture = *canvas.Finish();
  EXPECT_LT(*std::min_element(picture.pixels.begin(), picture.pixels.end()), 60);
}

TEST(WindowTest, LeavesBackgroundOutAndSurvivesAnything) {
  const float nan = std::nanf(""), inf = std::numeric_limits<float>::infinity();
  std::vector<float> body = RandomFloats(4000, 1, 0, 100);
  std::vector<float> values(6000, -1000.f);
  values.insert(values.end(), body.begin(), body.end());
  values.push_back(3000);
  values.push_back(nan);
  values.push_back(-inf);
  const IntensityWindow window = FindWindow(values);
  EXPECT_GT(window.low, -100);
  EXPECT_LT(window.low, 20);
  EXPECT_GT(window.high, 80);
  EXPECT_LT(window.high, 200);
  for (const std::vector<float>& odd :
       {std::vector<float>{}, {nan, nan}, {5, 5, 5}, {1e30f, 1e30f}, {0, 0, 0, 1}, std::vector<float>(100, 7.f)}) {
    const IntensityWindow w = FindWindow(odd);
    EXPECT_GT(w.high, w.low);
    EXPECT_TRUE(std::isfinite(w.low) && std::isfinite(w.high));
  }
  std::vector<float> mask(1000, 0.f);
  std::fill(mask.begin(), mask.begin() + 300, 1.f);
  EXPECT_EQ(FindWindow(mask).low, 0);
  EXPECT_EQ(FindWindow(mask).high, 1);
}

constexpr int kPanel = 96;
using Column = MontageColumn;

struct Montage {
  Picture picture;
  std::vector<MontagePanel> panels;
};

const MontagePanel& PlaceOf(const Montage& montage, Column column, int row) {
  for (const MontagePanel& panel : montage.panels) {
    if (panel.column == column && panel.row == row) return panel;
  }
  ADD_FAILURE() << "there is no such panel";
  return montage.panels[0];
}

Picture Panel(const Montage& montage, Column column, int row = 0) {
  const MontagePanel& place = PlaceOf(montage, column, row);
  Picture panel{place.width, place.height, {}};
  for (int y = 0; y < place.height; ++y) {
    for (int x = 0; x < place.width; ++x) {
      for (int c : At(montage.picture, place.left + x, place.top + y)) panel.pixels.push_back(static_cast<uint8_t>(c));
    }
  }
  return panel;
}

int Brightest(const Picture& picture) { return *std::max_element(picture.pixels.begin(), picture.pixels.end()); }

HostImage ImageOf(const Geometry& g, const std::function<float(Vec3d)>& f) {
  HostImage image{g, {}};
  const AffineMap to_physical = IndexToPhysical(g);
  for (int z = 0; z < g.size.z; ++z)
    for (int y = 0; y < g.size.y; ++y)
      for (int x = 0; x < g.size.x; ++x) image.values.push_back(f(to_physical({double(x), double(y), double(z)})));
  return image;
}

HostField FieldOf(const Geometry& g, const std::function<Vec3d(Vec3d)>& f) {
  HostField field{g, std::vector<float>(3 * g.voxels())};
  for (int c = 0; c < 3; ++c) {
    const HostImage component = ImageOf(g, [&](Vec3d p) { return static_cast<float>(f(p)[c]); });
    for (int64_t i = 0; i < g.voxels(); ++i) field.displacement[3 * i + c] = component.values[i];
  }
  return field;
}

// 31 mm to every side of 0.
Geometry Cube(int size = 31) {
  Geometry g;
  g.size = {size, size, size};
  g.spacing = {62.0 / size, 62.0 / size, 62.0 / size};
  g.origin = {-31 + 31.0 / size, -31 + 31.0 / size, -31 + 31.0 / size};
  return g;
}

// Something different in each of the eight corners, and in the middle of each face.
float Scene(Vec3d p) {
  return static_cast<float>(100 + p.x + 0.5 * p.y + 0.25 * p.z + 40 * std::sin(p.x / 9) * std::cos(p.y / 7 + p.z / 11));
}

Montage Render(const HostImage& fixed, const HostImage& moving, const HostImage& warped, const HostField& field,
               MontageOptions options = {}) {
  options.panel_pixels = kPanel;
  Montage montage;
  const absl::StatusOr<Picture> picture = RenderMontage(fixed, moving, warped, field, options, &montage.panels);
  EXPECT_THAT(picture, Succeeds());
  montage.picture = *picture;
  return montage;
}

// Images whose axes are not the patient's have no letters on them, and panels show the slices alone.
HostImage Plain(HostImage image) {
  image.has_orientation = false;
  return image;
}

HostField NoField(const Geometry& g) {
  return FieldOf(g, [](Vec3d) { return Vec3d{}; });
}

TEST(MontageTest, PatientsAxesDecideWhateverTheOrderOfTheVoxels) {
  const Geometry lps = Cube();
  const HostImage image = ImageOf(lps, Scene);
  const Montage expected = Render(image, image, image, NoField(lps));
  // The patient's left is on the right, and the image gets brighter towards it, the back and the head.
  const Picture axial = Panel(expected, Column::kFixed, 0);
  EXPECT_GT(At(axial, 75, 30)[0], At(axial, 20, 30)[0]);
  const Picture coronal = Panel(expected, Column::kFixed, 1);
  EXPECT_GT(At(coronal, 40, 20)[0], At(coronal, 40, 75)[0]);

  const int orders[][3] = {{0, 1, 2}, {1, 2, 0}, {2, 0, 1}, {1, 0, 2}};
  for (const auto& order : orders) {
    for (int flips = 0; flips < 8; ++flips) {
      Geometry g = lps;
      for (auto& row : g.direction) std::fill(row, row + 3, 0.0);
      for (int c = 0; c < 3; ++c) {
        const int sign = flips >> c & 1 ? -1 : 1;
        g.direction[order[c]][c] = sign;
        g.origin[order[c]] = sign * -30;
      }
      const HostImage other = ImageOf(g, Scene);
      const Montage montage = Render(other, other, other, NoField(g));
      ASSERT_EQ(montage.picture.height, expected.picture.height);
      int worst = 0;
      for (int row = 0; row < 3; ++row) {
        const Picture a = Panel(expected, Column::kWarped, row), b = Panel(montage, Column::kWarped, row);
        for (size_t i = 0; i < a.pixels.size(); ++i) worst = std::max(worst, std::abs(a.pixels[i] - b.pixels[i]));
      }
      EXPECT_LE(worst, 1) << order[0] << order[1] << order[2] << " flips " << flips;
    }
  }
}

TEST(MontageTest, PixelsAreSquareInMillimetres) {
  Geometry g = Cube();
  g.size.z = 29;
  g.spacing.z = 2;
  const HostImage image = ImageOf(g, Scene);
  const Montage montage = Render(image, image, image, NoField(g));
  EXPECT_EQ(PlaceOf(montage, Column::kFixed, 1).width, kPanel);
  EXPECT_EQ(PlaceOf(montage, Column::kFixed, 1).height, std::lround(58 / 62.0 * kPanel));
}

// A stack of few slices is stretched until its letters have room.
TEST(MontageTest, ThinStacksAreLegible) {
  Geometry g = Cube();
  g.size.z = 3;
  g.spacing.z = 2;
  const HostImage image = ImageOf(g, Scene);
  const Montage montage = Render(image, image, image, NoField(g));
  for (int row = 0; row < 3; ++row) {
    EXPECT_GE(PlaceOf(montage, Column::kFixed, row).height, 84) << row;
    EXPECT_EQ(PlaceOf(montage, Column::kFixed, row).width, kPanel) << row;
  }
}

TEST(MontageTest, TwoDimensionalHasOneRow) {
  Geometry g = Cube();
  g.size.z = 1;
  const HostImage image = ImageOf(g, Scene);
  const Montage montage = Render(image, image, image, NoField(g));
  EXPECT_EQ(montage.panels.size(), 8u);
  EXPECT_EQ(PlaceOf(montage, Column::kGrid, 0).width, kPanel);
}

TEST(MontageTest, PanelsLieBesideEachOther) {
  const Geometry g = Cube();
  const HostImage image = ImageOf(g, Scene);
  const Montage montage = Render(image, image, image, NoField(g));
  ASSERT_EQ(montage.panels.size(), 24u);
  for (const MontagePanel& a : montage.panels) {
    EXPECT_GE(a.left, 0);
    EXPECT_GE(a.top, 0);
    EXPECT_LE(a.left + a.width, montage.picture.width);
    EXPECT_LE(a.top + a.height, montage.picture.height);
    for (const MontagePanel& b : montage.panels) {
      if (&a == &b) continue;
      const bool apart = a.left + a.width <= b.left || b.left + b.width <= a.left || a.top + a.height <= b.top ||
                         b.top + b.height <= a.top;
      EXPECT_TRUE(apart);
    }
  }
}

// Letters would claim a side of the patient.
TEST(MontageTest, LettersNeedAnOrientation) {
  const Geometry g = Cube();
  const HostImage image = ImageOf(g, [](Vec3d) { return 0.f; });
  const Montage with = Render(image, image, image, NoField(g));
  const Montage without = Render(Plain(image), image, image, NoField(g));
  for (int row = 0; row < 3; ++row) {
    EXPECT_GT(Brightest(Panel(with, Column::kWarped, row)), 200) << row;
    EXPECT_LT(Brightest(Panel(without, Column::kWarped, row)), 40) << row;
  }
}

// The same values of a small field of view and of a large one look the same and have no difference.
TEST(MontageTest, LikeImagesShareOneWindow) {
  const Geometry g = Cube(31);
  Geometry part = g;
  part.size = {13, 13, 13};
  part.origin = g.origin + 9.0 * g.spacing;
  const HostImage fixed = Plain(ImageOf(g, Scene)), moving = ImageOf(part, Scene);
  const Montage montage = Render(fixed, moving, fixed, NoField(g));
  EXPECT_LT(Brightest(Panel(montage, Column::kAfter)), 20 + 26) << "no more than an empty panel";
  const Picture after = Panel(montage, Column::kAfter), same = Panel(montage, Column::kBefore);
  const Rgb middle = At(after, 48, 48);
  EXPECT_LT(*std::max_element(middle.begin(), middle.end()), 20);
  EXPECT_EQ(At(Panel(montage, Column::kWarped), 45, 45), At(Panel(montage, Column::kMoving), 45, 45));
  // Another gain and offset is matched.
  HostImage scaled = moving, warped = fixed;
  for (float& v : scaled.values) v = 10 * v - 300;
  for (float& v : warped.values) v = 10 * v - 300;
  const Rgb matched = At(Panel(Render(fixed, scaled, warped, NoField(g)), Column::kAfter), 48, 48);
  EXPECT_LT(*std::max_element(matched.begin(), matched.end()), 20);
}

// A difference of unlike modalities means nothing: contours of the fixed image take its place.
TEST(MontageTest, UnlikeImagesHaveContours) {
  const Geometry g = Cube(63);
  const auto ball = [](double inside, double outside, double x) {
    return [=](Vec3d p) {
      return static_cast<float>(Dot(p - Vec3d{x, 0, 0}, p - Vec3d{x, 0, 0}) < 400 ? inside : outside);
    };
  };
  const HostImage fixed = Plain(ImageOf(g, ball(100, 10, 0))), moving = ImageOf(g, ball(10, 100, 0));
  const Montage montage = Render(fixed, moving, moving, NoField(g));
  const Picture after = Panel(montage, Column::kAfter);
  int orange = 0, on_edge = 0;
  for (int y = 0; y < kPanel; ++y) {
    for (int x = 0; x < kPanel; ++x) {
      const Rgb color = At(after, x, y);
      if (color[0] - color[2] < 120) continue;
      ++orange;
      const double mm = 62.0 / kPanel, dx = (x - 47.5) * mm, dy = (y - 47.5) * mm;
      on_edge += std::abs(std::hypot(dx, dy) - 20) < 3;
    }
  }
  EXPECT_GT(orange, 100);
  EXPECT_EQ(on_edge, orange) << "contours lie on the edge of the ball";
  // It can be said beforehand, too.
  MontageOptions options;
  options.relation = IntensityRelation::kSame;
  const Picture difference = Panel(Render(fixed, moving, moving, NoField(g), options), Column::kAfter);
  EXPECT_GT(At(difference, 48, 48)[0], At(difference, 48, 48)[2] + 100) << "fixed is brighter";
}

ErrorBlocks BlocksOf(const std::function<float(Vec3d)>& mm) {
  Geometry blocks = Cube(8);
  return {blocks, ImageOf(blocks, mm).values, 5};
}

TEST(MontageTest, ThePredictedErrorHasAPanel) {
  const Geometry g = Cube();
  const HostImage image = Plain(ImageOf(g, [](Vec3d) { return 0.f; }));
  MontageOptions options;
  options.error = BlocksOf([](Vec3d p) { return p.x < -16 ? std::nanf("") : p.x < 0 ? 0.5f : 4.5f; });
  const Picture panel = Panel(Render(image, image, image, NoField(g), options), Column::kError);
  const Rgb low = At(panel, 40, 40), high = At(panel, 70, 40);
  const auto light = [](Rgb c) { return c[0] + c[1] + c[2]; };
  EXPECT_GT(light(high), light(low) + 100) << "viridis grows lighter";
  // Stripes where nothing was judged: neither colour.
  int lights = 0;
  for (int x = 0; x < 20; ++x) lights = std::max(lights, std::abs(At(panel, x, 40)[0] - At(panel, x, 40)[1]));
  EXPECT_LE(lights, 6);
  EXPECT_GT(std::abs(high[0] - high[2]), 30);
}

TEST(MontageTest, MissingTissueIsHatched) {
  const Geometry g = Cube();
  const HostImage image = Plain(ImageOf(g, Scene));
  MontageOptions options;
  options.error = BlocksOf([](Vec3d) { return 2.f; });
  const Montage whole = Render(image, image, image, NoField(g), options);
  Geometry nodes = Cube(31);
  options.missing = MissingNodes{nodes, std::vector<uint8_t>(nodes.voxels())};
  const HostImage is_left = ImageOf(nodes, [](Vec3d p) { return p.x < -8 ? 1.f : 0.f; });
  for (size_t i = 0; i < is_left.values.size(); ++i) options.missing->nodes[i] = is_left.values[i] > 0;
  const Montage holed = Render(image, image, image, NoField(g), options);
  for (const Column column : {Column::kFixed, Column::kError}) {
    const Picture before = Panel(whole, column), after = Panel(holed, column);
    int changed = 0, elsewhere = 0;
    for (int x = 0; x < before.width; ++x) {
      const bool is_changed = At(before, x, 40) != At(after, x, 40);
      (x < before.width / 2 - 14 ? changed : elsewhere) += is_changed ? 1 : 0;
    }
    EXPECT_GT(changed, 4);
    EXPECT_EQ(elsewhere, 0);
  }
  EXPECT_EQ(Panel(whole, Column::kWarped).pixels, Panel(holed, Column::kWarped).pixels);
  options.missing->nodes.pop_back();
  EXPECT_THAT(RenderMontage(image, image, image, NoField(g), options), Fails(kInvalid, "missing: "));
}

// The slices go where a large error is predicted, or where they are told to; otherwise through the middle.
TEST(MontageTest, SlicesGoThroughTheLargestError) {
  const Geometry g = Cube(31);
  // Each slice along z has a brightness of its own, and so has the corner that sets the window.
  const HostImage image = Plain(ImageOf(g, [](Vec3d p) { return static_cast<float>(p.z); }));
  const auto brightness = [&](const MontageOptions& options) {
    return At(Panel(Render(image, image, image, NoField(g), options), Column::kWarped), 48, 48)[0];
  };
  MontageOptions options;
  const int middle = brightness(options);
  options.error = BlocksOf([](Vec3d) { return 4.f; });
  EXPECT_EQ(brightness(options), middle) << "no error is above the limit";
  options.error = BlocksOf([](Vec3d p) { return p.z > 20 && std::abs(p.x) < 8 && std::abs(p.y) < 8 ? 9.f : 6.f; });
  const int head = brightness(options);
  EXPECT_GT(head, middle + 30);
  options.at = Vec3d{0, 0, -24};
  EXPECT_LT(brightness(options), middle - 30);
  options.at = Vec3d{0, 0, -1e9};
  EXPECT_LT(brightness(options), middle - 30) << "brought into the image";
}

TEST(MontageTest, TheVerdictStandsAbove) {
  const Geometry g = Cube();
  const HostImage image = ImageOf(g, Scene);
  MontageOptions options;
  options.heading = "Verdict: review before use";
  options.is_good = false;
  options.remarks = {"unrelated images (agreement 0.01, chance 0.08)", std::string(3000, 'x')};
  options.footer = "intrawarp 0.1.0";
  const Montage with = Render(image, image, image, NoField(g), options);
  const Montage without = Render(image, image, image, NoField(g));
  EXPECT_GT(PlaceOf(with, Column::kFixed, 0).top, PlaceOf(without, Column::kFixed, 0).top + 40);
  int orange = 0;
  for (int y = 0; y < 40; ++y) {
    for (int x = 0; x < 400; ++x) orange += At(with.picture, x, y)[0] > At(with.picture, x, y)[2] + 100;
  }
  EXPECT_GT(orange, 200);
  options.is_good = true;
  EXPECT_NE(Render(image, image, image, NoField(g), options).picture.pixels, with.picture.pixels);
}

// The map that moves nothing has no colours.
TEST(MontageTest, TheGridOfTheIdentityIsOfOneColour) {
  const Geometry g = Cube();
  const HostImage image = Plain(ImageOf(g, [](Vec3d) { return 0.f; }));
  const auto spread = [&](double mm) {
    const HostField field = FieldOf(g, [&](Vec3d p) { return Vec3d{mm * std::sin(p.x), mm * std::cos(p.y), 0}; });
    const Picture panel = Panel(Render(image, image, image, field), Column::kGrid);
    int most = 0;
    for (int i = 0; i < panel.width * panel.height; ++i) {
      most = std::max(most, int{panel.pixels[3 * i]} - int{panel.pixels[3 * i + 2]});
    }
    return most;
  };
  EXPECT_LT(spread(1e-13), 10) << "no yellow";
  EXPECT_GT(spread(2), 60);
}

TEST(MontageTest, DifferencesHaveSignsAndVanishWhereNothingDiffers) {
  const Geometry g = Cube();
  const HostImage fixed = ImageOf(g, [](Vec3d p) { return p.x < -10 ? 100.f : p.x > 10 ? 50.f : 75.f; });
  const HostImage moving = ImageOf(g, [](Vec3d p) { return p.x < -10 ? 50.f : p.x > 10 ? 100.f : 75.f; });
  MontageOptions options;
  options.relation = IntensityRelation::kSame;
  const Montage picture = Render(Plain(fixed), moving, fixed, NoField(g), options);
  const Picture before = Panel(picture, Column::kBefore);
  const Rgb brighter = At(before, 10, 48), darker = At(before, 85, 48), same = At(before, 48, 48);
  EXPECT_GT(brighter[0], brighter[2] + 100) << "orange";
  EXPECT_GT(darker[2], darker[0] + 100) << "blue";
  EXPECT_LT(*std::max_element(same.begin(), same.end()), 20);
  const Picture after = Panel(picture, Column::kAfter);
  EXPECT_LT(Brightest(after), 20);
}

// Squares of the fixed image are warm, those of the warped one cool, and equal grey values equally light.
TEST(MontageTest, SquaresOfTheCheckerboardTellTheirImage) {
  const Geometry g = Cube();
  const HostImage image = Plain(ImageOf(g, [](Vec3d p) { return p.x < 0 ? 100.f : 50.f; }));
  const Picture checker = Panel(Render(image, image, image, NoField(g)), Column::kCheckerboard);
  const int square = kPanel / 8;
  const auto middle = [&](int i, int j) { return At(checker, i * square + square / 2, j * square + square / 2); };
  for (int j = 0; j < 8; ++j) {
    for (int i = 0; i < 4; ++i) {
      const Rgb color = middle(i, j);
      const int warmth = color[0] - color[2];
      EXPECT_GT((i + j) % 2 == 0 ? warmth : -warmth, 24) << i << " " << j;
    }
  }
  const auto luma = [](Rgb c) { return 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2]; };
  EXPECT_NEAR(luma(middle(0, 0)), luma(middle(1, 0)), 6);
}

// Before, the moving image lies where its header says; after, the field has brought it over.
TEST(MontageTest, BeforeFollowsTheHeader) {
  const Geometry g = Cube();
  Geometry shifted = g;
  shifted.origin.x += 8;
  const HostImage fixed = Plain(ImageOf(g, Scene));
  HostImage moving = fixed;
  moving.geometry = shifted;
  const HostField field = FieldOf(g, [](Vec3d) { return Vec3d{8, 0, 0}; });
  const Montage picture = Render(fixed, moving, fixed, field);
  const Picture before = Panel(picture, Column::kBefore), after = Panel(picture, Column::kAfter);
  const Rgb empty = At(before, 3, 30);
  EXPECT_EQ(empty, At(before, 9, 60)) << "left of the moving image there is nothing";
  EXPECT_EQ(At(Panel(picture, Column::kMoving), 3, 30), empty);
  EXPECT_GT(Brightest(before), 100);
  const Rgb gone = At(after, 30, 48);
  EXPECT_LT(*std::max_element(gone.begin(), gone.end()), 20);
}

TEST(MontageTest, WarpedIsEmptyWithoutASource) {
  const Geometry g = Cube();
  const HostImage image = Plain(ImageOf(g, Scene));
  const HostField field = FieldOf(g, [](Vec3d p) { return p.x > 0 ? Vec3d{1000, 0, 0} : Vec3d{}; });
  const Montage picture = Render(image, image, image, field);
  const Picture warped = Panel(picture, Column::kWarped), fixed = Panel(picture, Column::kFixed);
  EXPECT_EQ(At(warped, 20, 40), At(fixed, 20, 40));
  EXPECT_EQ(At(warped, 60, 40), At(warped, 80, 70));
  EXPECT_LT(At(warped, 60, 40)[0], 40);
}

constexpr int kLit = 70;  // lines on a black image are brighter

// Vertical lines crossed on the way from left to right.
int LinesAcross(const Picture& panel, int y) {
  int lines = 0;
  bool on = false;
  for (int x = 0; x < panel.width; ++x) {
    const Rgb color = At(panel, x, y);
    const bool now = *std::max_element(color.begin(), color.end()) > kLit;
    lines += now && !on;
    on = now;
  }
  return lines;
}

TEST(MontageTest, GridIsThatOfTheTransform) {
  const Geometry g = Cube(63);
  const HostImage black = Plain(ImageOf(g, [](Vec3d) { return 0.f; }));
  const auto lines = [&](const std::function<Vec3d(Vec3d)>& u) {
    const Picture panel = Panel(Render(black, black, black, FieldOf(g, u)), Column::kGrid);
    // In most of the rows, no horizontal line is near.
    std::vector<int> counts;
    for (int y = 0; y < kPanel; ++y) counts.push_back(LinesAcross(panel, y));
    std::nth_element(counts.begin(), counts.begin() + kPanel / 2, counts.end());
    return counts[kPanel / 2];
  };
  const int straight = lines([](Vec3d) { return Vec3d{}; });
  EXPECT_GE(straight, 10);
  EXPECT_LE(straight, 22);
  EXPECT_NEAR(lines([](Vec3d p) { return Vec3d{-0.5 * p.x, 0, 0}; }), straight / 2, 1);
  EXPECT_NEAR(lines([](Vec3d p) { return Vec3d{0.5 * p.x, 0, 0}; }), straight * 3 / 2, 2);
  EXPECT_NEAR(lines([](Vec3d) { return Vec3d{2.5, 0, 0}; }), straight, 1);
}

// Column of the first vertical line of a row that no horizontal line crosses; -1 where one does.
int FirstLine(const Picture& panel, int y) {
  int lit = 0, first = -1;
  for (int x = 0; x < panel.width; ++x) {
    const Rgb color = At(panel, x, y);
    if (*std::max_element(color.begin(), color.end()) <= kLit) continue;
    if (first < 0) first = x;
    ++lit;
  }
  return lit > panel.width / 2 ? -1 : first;
}

// Lines bend where the displacement does: shifted to the side as a sine, they begin elsewhere from row to row.
TEST(MontageTest, LinesOfTheGridBend) {
  const Geometry g = Cube(63);
  const HostImage black = Plain(ImageOf(g, [](Vec3d) { return 0.f; }));
  const auto spread = [&](double amplitude) {
    const HostField field = FieldOf(g, [&](Vec3d p) { return Vec3d{amplitude * std::sin(p.y / 8), 0, 0}; });
    const Picture panel = Panel(Render(black, black, black, field), Column::kGrid);
    int least = kPanel, most = 0;
    for (int y = kPanel / 8; y < kPanel * 7 / 8; ++y) {
      const int first = FirstLine(panel, y);
      if (first < 0) continue;
      least = std::min(least, first);
      most = std::max(most, first);
    }
    return most - least;
  };
  EXPECT_LE(spread(0), 1);
  // 3 mm of 62, and an antialiased line's width.
  EXPECT_GE(spread(0.75), static_cast<int>(1.2 * kPanel / 62));
}

// A difference that a non-rigid map explains is there before and gone after.
TEST(MontageTest, ABentImageIsStraightAfterwards) {
  const Geometry g = Cube(63);
  const auto u = [](Vec3d p) { return Vec3d{4 * std::sin(p.y / 8), 3 * std::cos(p.x / 9), 0}; };
  // Large enough to have a source for every voxel.
  Geometry large = g;
  large.size = {75, 75, 75};
  large.origin = g.origin - 6.0 * g.spacing;
  const HostImage fixed = Plain(ImageOf(g, [&](Vec3d p) { return Scene(p + u(p)); })), moving = ImageOf(large, Scene);
  const Montage picture = Render(fixed, moving, fixed, FieldOf(g, u));
  const int most_after = Brightest(Panel(picture, Column::kAfter));
  EXPECT_LT(most_after, 20);
  EXPECT_GT(Brightest(Panel(picture, Column::kBefore)), 3 * most_after);
}

TEST(MontageTest, RefusesWhatDoesNotFit) {
  const Geometry g = Cube(9);
  const HostImage image = ImageOf(g, Scene);
  const HostField field = NoField(g);
  Geometry other = g;
  other.origin.x += 5;
  HostImage bad = image;
  bad.values.pop_back();
  EXPECT_THAT(RenderMontage(bad, image, image, field), Fails(kInvalid, "fixed: the number of values"));
  EXPECT_THAT(RenderMontage(image, bad, image, field), Fails(kInvalid, "moving: the number of values"));
  bad = image;
  bad.geometry = other;
  EXPECT_THAT(RenderMontage(image, bad, image, field), Succeeds());
  EXPECT_THAT(RenderMontage(image, image, bad, field), Fails(kInvalid, "warped: does not lie on the grid"));
  HostField bad_field = field;
  bad_field.geometry = other;
  EXPECT_THAT(RenderMontage(image, image, image, bad_field), Fails(kInvalid, "field: does not lie on the grid"));
  bad_field = field;
  bad_field.displacement.resize(9);
  EXPECT_THAT(RenderMontage(image, image, image, bad_field), Fails(kInvalid, "field: the number of values"));
  bad = image;
  bad.geometry.spacing.y = 0;
  EXPECT_THAT(RenderMontage(bad, image, image, field), Fails(kInvalid, "fixed: spacing: y"));
  MontageOptions options;
  options.panel_pixels = 10;
  EXPECT_THAT(RenderMontage(image, image, image, field, options), Fails(kInvalid, "panel_pixels: "));
  options = {};
  options.at = Vec3d{0, std::nan(""), 0};
  EXPECT_THAT(RenderMontage(image, image, image, field, options), Fails(kInvalid, "at: "));
  options = {};
  options.error = BlocksOf([](Vec3d) { return 1.f; });
  options.error->expected_mm.pop_back();
  EXPECT_THAT(RenderMontage(image, image, image, field, options), Fails(kInvalid, "error: the number of values"));
}

TEST(MontageTest, SurvivesWhatIsNotFinite) {
  const Geometry g = Cube(9);
  const float nan = std::nanf("");
  const HostImage image{g, std::vector<float>(g.voxels(), nan)};
  HostField field = NoField(g);
  std::fill(field.displacement.begin(), field.displacement.end(), nan);
  EXPECT_THAT(RenderMontage(image, image, image, field), Succeeds());
}

}  // namespace
}  // namespace intrawarp::io
