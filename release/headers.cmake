# The public interface of libmlxcel: its headers, and the names of its functions outside this tree.
#
# The headers are the list of the interface: exactly the functions that they declare are exported. In the sources their
# names begin with mlx_, as all names do. Outside they begin with mlxcel_, because mlx_ is the prefix of Apple's mlx-c:
#   headers   The installed copies have mlxcel_ and MLXCEL_ in place of mlx_ and MLX_.
#   symbols   Every source is compiled with public_names.h, a #pragma redefine_extname for each public function.
#
# In the installed tree all headers lie in one folder: #include "base/status.h" becomes #include "status.h", and its
# include guard MLXCEL_STATUS_H_.

set(public_headers runtime/mlxcel.h base/progress.h base/status.h grammar/grammar.h output/output_format.h template/chat_formats.h template/conversation.h)
set(installed_headers "")
set(public_functions "")  # without a prefix
foreach(header ${public_headers})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${header})
  get_filename_component(name ${header} NAME)
  file(READ ${CMAKE_SOURCE_DIR}/${header} text)
  string(REGEX REPLACE "#include \"[a-z_]+/([a-z_]+\\.h)\"" "#include \"\\1\"" text "${text}")
  string(REGEX REPLACE "MLXCEL_[A-Z]+_([A-Z_]+_H_)" "MLXCEL_\\1" text "${text}")
  string(REGEX REPLACE "(^|[^A-Za-z0-9_])mlx_" "\\1mlxcel_" text "${text}")
  string(REGEX REPLACE "(^|[^A-Za-z0-9_])MLX_" "\\1MLXCEL_" text "${text}")
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/include/mlxcel/${name} CONTENT "${text}" @ONLY)
  list(APPEND installed_headers ${CMAKE_BINARY_DIR}/generated/include/mlxcel/${name})
  # A declaration starts at the first column; the lines of a struct, of parameters and of a macro do not.
  string(REGEX MATCHALL "\n[a-z][a-z0-9_ *]*[ *]mlxcel_[a-z0-9_]+\\(" declarations "${text}")
  list(TRANSFORM declarations REPLACE ".*[ *]mlxcel_([a-z0-9_]+)\\($" "\\1")
  list(APPEND public_functions ${declarations})
endforeach()
list(SORT public_functions)

set(public_names ${CMAKE_BINARY_DIR}/generated/public_names.h)
list(TRANSFORM public_functions REPLACE "(.+)" "#pragma redefine_extname mlx_\\1 mlxcel_\\1" OUTPUT_VARIABLE lines)
list(JOIN lines "\n" lines)
file(CONFIGURE OUTPUT ${public_names} CONTENT "// Written by release/headers.cmake.\n${lines}\n" @ONLY)
