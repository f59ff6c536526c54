// SPDX-License-Identifier: Apache-2.0
#include "io/picture/canvas.h"

#include <cairo-ft.h>
#include <cairo.h>
#include <ft2build.h>
#include FT_FREETYPE_H

#include <string>

#include "io/picture/cairo_surface.h"

namespace intrawarp::io {
namespace {

// Where Debian's fonts-dejavu-core puts its files.
constexpr const char* kRegularFile = "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf";
constexpr const char* kBoldFile = "/usr/share/fonts/truetype/dejavu/DejaVuSans-Bold.ttf";

void SetColor(cairo_t* context, Color c) { cairo_set_source_rgb(context, c.r, c.g, c.b); }

// The font of this file; where it is missing, the sans-serif font that fontconfig chooses.
cairo_font_face_t* LoadFace(FT_Library library, const char* file, cairo_font_weight_t weight) {
  FT_Face face;
  if (library != nullptr && FT_New_Face(library, file, 0, &face) == 0) {
    return cairo_ft_font_face_create_for_ft_face(face, 0);
  }
  return cairo_toy_font_face_create("sans-serif", CAIRO_FONT_SLANT_NORMAL, weight);
}

// Both are loaded once and stay: cairo keeps glyphs of a font for as long as the font lives, and locks them itself.
struct Faces {
  cairo_font_face_t* regular = nullptr;
  cairo_font_face_t* bold = nullptr;
};
const Faces& LoadedFaces() {
  static const Faces faces = [] {
    FT_Library library = nullptr;
    if (FT_Init_FreeType(&library) != 0) library = nullptr;
    return Faces{LoadFace(library, kRegularFile, CAIRO_FONT_WEIGHT_NORMAL),
                 LoadFace(library, kBoldFile, CAIRO_FONT_WEIGHT_BOLD)};
  }();
  return faces;
}

// The same on every machine, with no regard to the desktop's settings.
void SetFontOptions(cairo_t* context) {
  cairo_font_options_t* options = cairo_font_options_create();
  cairo_font_options_set_antialias(options, CAIRO_ANTIALIAS_GRAY);
  cairo_font_options_set_hint_style(options, CAIRO_HINT_STYLE_SLIGHT);
  cairo_font_options_set_hint_metrics(options, CAIRO_HINT_METRICS_OFF);
  cairo_set_font_options(context, options);
  cairo_font_options_destroy(options);
}

cairo_t* NewContext(int width, int height) {
  const Surface surface(cairo_image_surface_create(CAIRO_FORMAT_RGB24, width, height));
  cairo_t* context = cairo_create(surface.get());
  SetFontOptions(context);
  return context;
}

// The outlines of a line of text whose top left corner is (x, y).
void AppendText(cairo_t* context, double x, double y, absl::string_view text, Font font) {
  SetCairoFont(context, font);
  cairo_font_extents_t extents;
  cairo_font_extents(context, &extents);
  cairo_new_path(context);
  cairo_move_to(context, x, y + extents.ascent);
  cairo_text_path(context, std::string(text).c_str());
}

}  // namespace

void SetCairoFont(cairo_t* context, Font font) {
  cairo_set_font_face(context, font.bold ? LoadedFaces().bold : LoadedFaces().regular);
  cairo_set_font_size(context, font.size);
}

void Canvas::Destroy::operator()(cairo_t* context) const { cairo_destroy(context); }

Canvas::Canvas(int width, int height, Color background) : context_(NewContext(width, height)) {
  Fill(0, 0, width, height, background);
}

void Canvas::Fill(int x, int y, int width, int height, Color color) {
  SetColor(context_.get(), color);
  cairo_rectangle(context_.get(), x, y, width, height);
  cairo_fill(context_.get());
}

void Canvas::Paint(int x, int y, const Picture& picture) {
  const Surface source = SurfaceOf(picture);
  cairo_set_source_surface(context_.get(), source.get(), x, y);
  cairo_rectangle(context_.get(), x, y, picture.width, picture.height);
  cairo_fill(context_.get());
}

void Canvas::Text(double x, double y, absl::string_view text, Font font, Color color) {
  AppendText(context_.get(), x, y, text, font);
  SetColor(context_.get(), color);
  cairo_fill(context_.get());
}

void Canvas::TextOnImage(double x, double y, absl::string_view text, Font font, Color color) {
  AppendText(context_.get(), x, y, text, font);
  SetColor(context_.get(), Color{});
  cairo_set_line_width(context_.get(), 0.25 * font.size);
  cairo_set_line_join(context_.get(), CAIRO_LINE_JOIN_ROUND);
  cairo_stroke_preserve(context_.get());
  SetColor(context_.get(), color);
  cairo_fill(context_.get());
}

double Canvas::TextWidth(absl::string_view text, Font font) {
  const Canvas scratch(1, 1, {});
  SetCairoFont(scratch.context_.get(), font);
  cairo_text_extents_t extents;
  cairo_text_extents(scratch.context_.get(), std::string(text).c_str(), &extents);
  return extents.x_advance;
}

double Canvas::LineHeight(Font font) {
  const Canvas scratch(1, 1, {});
  SetCairoFont(scratch.context_.get(), font);
  cairo_font_extents_t extents;
  cairo_font_extents(scratch.context_.get(), &extents);
  return extents.ascent + extents.descent;
}

absl::StatusOr<Picture> Canvas::Finish() const {
  const absl::Status status = CairoStatus(cairo_status(context_.get()));
  if (!status.ok()) return status;
  return PictureOf(cairo_get_target(context_.get()));
}

}  // namespace intrawarp::io
