# libmlxcel (shared and static), and what `cmake --install` puts in a prefix: the command, the library, its headers, the
# pkg-config files, the CMake package, manual pages and completions. docs/library.md describes the result.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# ---- the shared library ----------------------------------------------------------------------------------------------
# The name has the major and the minor version: runtime/mlxcel.h states what a version may change.

string(REGEX MATCH "^[0-9]+\\.[0-9]+\\.[0-9]+" library_version ${MLXCEL_VERSION})  # without a suffix such as -trial
string(REGEX MATCH "^[0-9]+\\.[0-9]+" abi_version ${library_version})
if(WIN32)
  list(TRANSFORM public_functions PREPEND "mlxcel_" OUTPUT_VARIABLE lines)
  list(JOIN lines "\n" lines)
  set(exports ${CMAKE_BINARY_DIR}/generated/mlxcel.def)
  file(CONFIGURE OUTPUT ${exports} CONTENT "EXPORTS\n${lines}\n" @ONLY)
else()
  set(exports ${CMAKE_BINARY_DIR}/generated/mlxcel.map)
  file(CONFIGURE OUTPUT ${exports} CONTENT "MLXCEL_${abi_version} {\n  global:\n    mlxcel_*;\n  local:\n    *;\n};\n" @ONLY)
endif()
list(TRANSFORM public_functions PREPEND "-Wl,-u,mlxcel_" OUTPUT_VARIABLE keep_public)

# The libraries that a program which links libmlxcel.a needs too.
set(static_libraries "-lm -ldl -lpthread")
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/library.c CONTENT "// Written by CMake: the sources are in the linked archives.
typedef int mlx_translation_unit_is_not_empty;\n" @ONLY)

add_library(mlxcel_shared SHARED ${CMAKE_BINARY_DIR}/generated/library.c)
set_target_properties(mlxcel_shared PROPERTIES OUTPUT_NAME mlxcel VERSION ${library_version} SOVERSION ${abi_version}
  LINK_DEPENDS ${exports} LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
target_link_libraries(mlxcel_shared PRIVATE mlxcel_open mlxcel_compiler)
if(WIN32)
  target_sources(mlxcel_shared PRIVATE ${exports})
else()
  target_link_options(mlxcel_shared PRIVATE ${keep_public} -Wl,--version-script=${exports} -Wl,-z,defs)
endif()

# The shared library without the compiler: compiler/absent replaces it. It opens bundles only.
if(NOT WIN32)
  add_library(mlxcel_shared_runtime_only SHARED EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/generated/library.c)
  set_target_properties(mlxcel_shared_runtime_only PROPERTIES OUTPUT_NAME mlxcel VERSION ${library_version} SOVERSION ${abi_version}
    LINK_DEPENDS ${exports} LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/runtime-only)
  target_link_libraries(mlxcel_shared_runtime_only PRIVATE mlxcel_open mlxcel_compiler_absent)
  target_link_options(mlxcel_shared_runtime_only PRIVATE ${keep_public} -Wl,--version-script=${exports} -Wl,-z,defs)
endif()

# ---- the static library ----------------------------------------------------------------------------------------------
# One object file: all archives linked with -r, without unused sections. Then objcopy makes every symbol local that is
# not public, so that a program may link mlx-c, or its own copy of IREE, yyjson or libsodium. An empty library stands in
# for each system library, which -r cannot link.

if(NOT CMAKE_CROSSCOMPILING AND CMAKE_OBJCOPY AND CMAKE_SYSTEM_NAME STREQUAL Linux)
  set(empty ${CMAKE_BINARY_DIR}/generated/empty)
  foreach(name m dl pthread rt)
    file(CONFIGURE OUTPUT ${empty}/lib${name}.a CONTENT "!<arch>\n" @ONLY)
  endforeach()
  add_executable(mlxcel_object ${CMAKE_BINARY_DIR}/generated/library.c)
  set_target_properties(mlxcel_object PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/generated SUFFIX .o)
  target_link_libraries(mlxcel_object PRIVATE mlxcel_open mlxcel_compiler)
  target_link_options(mlxcel_object PRIVATE -r -nostdlib -no-pie -L${empty} ${keep_public})
  set(static_library ${CMAKE_BINARY_DIR}/lib/libmlxcel.a)
  add_custom_command(OUTPUT ${static_library} DEPENDS mlxcel_object VERBATIM
    COMMAND ${CMAKE_OBJCOPY} --strip-debug --wildcard --keep-global-symbol=mlxcel_* $<TARGET_FILE:mlxcel_object> ${CMAKE_BINARY_DIR}/generated/mlxcel.o
    COMMAND ${CMAKE_COMMAND} -E rm -f ${static_library}
    COMMAND ${CMAKE_AR} rcsD ${static_library} ${CMAKE_BINARY_DIR}/generated/mlxcel.o)
  add_custom_target(mlxcel_static ALL DEPENDS ${static_library})
endif()

# Everything that `cmake --install` copies.
add_custom_target(mlxcel_install DEPENDS mlxcel mlxcel_shared ${static_library})

# ---- installing ------------------------------------------------------------------------------------------------------

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/mlxcel)
foreach(name mlxcel mlxcel-static)
  configure_file(${CMAKE_SOURCE_DIR}/release/cmake/${name}.pc.in ${CMAKE_BINARY_DIR}/generated/pkgconfig/${name}.pc @ONLY)
endforeach()
configure_package_config_file(${CMAKE_SOURCE_DIR}/release/cmake/mlxcelConfig.cmake.in ${CMAKE_BINARY_DIR}/generated/mlxcelConfig.cmake
  INSTALL_DESTINATION ${package_folder} PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/generated/mlxcelConfigVersion.cmake VERSION ${library_version} COMPATIBILITY SameMinorVersion)

install(TARGETS mlxcel_shared COMPONENT library RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${installed_headers} COMPONENT library DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/mlxcel)
install(FILES ${CMAKE_BINARY_DIR}/generated/mlxcelConfig.cmake ${CMAKE_BINARY_DIR}/generated/mlxcelConfigVersion.cmake COMPONENT library
  DESTINATION ${package_folder})
install(FILES ${CMAKE_BINARY_DIR}/generated/pkgconfig/mlxcel.pc COMPONENT library DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(static_library)
  install(FILES ${static_library} COMPONENT static DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(FILES ${CMAKE_BINARY_DIR}/generated/pkgconfig/mlxcel-static.pc COMPONENT static DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()
install(TARGETS mlxcel COMPONENT command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${CMAKE_BINARY_DIR}/share/mlxcel COMPONENT images DESTINATION ${CMAKE_INSTALL_DATADIR} OPTIONAL)  # of ./build.sh images
if(NOT WIN32)
  foreach(verb run compile bench)
    install(CODE "file(CREATE_LINK mlxcel \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}/mlxcel-${verb}\" SYMBOLIC)" COMPONENT command)
  endforeach()
endif()
if(NOT CMAKE_CROSSCOMPILING)  # the binary writes its manual pages and completions
  add_custom_command(TARGET mlxcel POST_BUILD VERBATIM
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/completions
    COMMAND sh -c "for shell in bash zsh fish; do \"$1\" completion --no-config $shell >\"$2/$shell\" || exit 1; done" sh $<TARGET_FILE:mlxcel> ${CMAKE_BINARY_DIR}/completions)
  install(DIRECTORY ${CMAKE_BINARY_DIR}/man/ COMPONENT command DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES ${CMAKE_BINARY_DIR}/completions/bash COMPONENT command RENAME mlxcel DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  install(FILES ${CMAKE_BINARY_DIR}/completions/zsh COMPONENT command RENAME _mlxcel DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
  install(FILES ${CMAKE_BINARY_DIR}/completions/fish COMPONENT command RENAME mlxcel.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
endif()
