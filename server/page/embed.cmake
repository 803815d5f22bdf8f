# Writes the chat page as C: cmake -DOUT=FILE.c "-DFILES=index.html;app.js" -P embed.cmake
# Scripts and styles, which only browsers read, are compressed with gzip. The archive has no time and no name, so the
# same files give the same bytes.
set(arrays "")
set(rows "")
set(number 0)
foreach(file IN LISTS FILES)
  get_filename_component(name ${file} NAME)
  get_filename_component(type ${file} EXT)
  if(type STREQUAL ".html")
    set(type "text/html; charset=utf-8")
  elseif(type STREQUAL ".css")
    set(type "text/css; charset=utf-8")
  elseif(type STREQUAL ".json")
    set(type "application/json")
  elseif(type STREQUAL ".svg")
    set(type "image/svg+xml")
  else()
    set(type "text/javascript; charset=utf-8")
  endif()
  set(path "/page/${name}")
  if(name STREQUAL "index.html")
    set(path "/")
  elseif(name STREQUAL "openapi.json")
    set(path "/openapi.json")
  endif()
  if(name MATCHES "\\.(html|json)$")
    set(is_gzip false)
    file(READ ${file} bytes HEX)
  else()
    set(is_gzip true)
    set(packed "${OUT}.gz")
    file(ARCHIVE_CREATE OUTPUT ${packed} PATHS ${file} FORMAT raw COMPRESSION GZip COMPRESSION_LEVEL 9 MTIME 0)
    file(READ ${packed} bytes HEX)
    file(REMOVE ${packed})
  endif()
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
  string(APPEND arrays "static const unsigned char file${number}[] = {${bytes}};\n")
  string(APPEND rows "    {\"${path}\", \"${type}\", (const char *)file${number}, sizeof file${number}, ${is_gzip}},\n")
  math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUT}
"// Written by server/page/embed.cmake from server/page and the libraries of third_party/npm.txt.
#include \"server/page/page.h\"
${arrays}const mlx_page_file_t mlx_page_files[] = {
${rows}    {0},
};
const char mlx_page_policy[] =
    \"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; font-src 'self'; \"
    \"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'\";
")
