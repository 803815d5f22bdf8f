# Builds Mbed TLS, for curl and server/http/tls.c, and libcurl, for transfer/http.c only. Their configuration is the
# same on every 64-bit Linux and is stored beside this file (curl_config.h, mbedtls_config.h). On Windows curl uses
# Schannel instead of Mbed TLS.
set(CURL ${MLXCEL_CRATES}/curl-sys/curl)
set(MBEDTLS ${MLXCEL_CRATES}/mbedtls-rs-sys/mbedtls)

file(GLOB mbedtls_sources ${MBEDTLS}/library/*.c)
third_party_library(mbedtls ${mbedtls_sources})
target_compile_definitions(mbedtls PUBLIC MBEDTLS_CONFIG_FILE="${CMAKE_SOURCE_DIR}/third_party/mbedtls_config.h")
target_include_directories(mbedtls SYSTEM PUBLIC ${MBEDTLS}/include PRIVATE ${MBEDTLS}/library)
if(WIN32)
  target_link_libraries(mbedtls PUBLIC bcrypt)
endif()

file(GLOB curl_sources ${CURL}/lib/*.c ${CURL}/lib/curlx/*.c ${CURL}/lib/vauth/*.c ${CURL}/lib/vdns/*.c ${CURL}/lib/vquic/*.c
     ${CURL}/lib/vssh/*.c ${CURL}/lib/vtls/*.c)
list(FILTER curl_sources EXCLUDE REGEX "/(dllmain|amigaos|memdebug)\\.c$")
third_party_library(curl ${curl_sources})
target_include_directories(curl SYSTEM PUBLIC ${CURL}/include)
target_include_directories(curl PRIVATE ${CURL}/lib)
target_compile_definitions(curl PRIVATE BUILDING_LIBCURL=1 HAVE_CONFIG_H=1 _GNU_SOURCE PUBLIC CURL_STATICLIB=1)
if(WIN32)
  # curl's configuration for Windows rejects compilers other than MSVC, but its values are right for them: remove the
  # check.
  file(READ ${CURL}/lib/config-win32.h config)
  string(REGEX REPLACE "#if !defined\\(_MSC_VER\\) [^\n]*\n#error [^\n]*\n#endif\n" "" config "${config}")
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/curl/curl_config.h CONTENT "${config}" @ONLY)
  target_include_directories(curl PRIVATE ${CMAKE_BINARY_DIR}/generated/curl)
  foreach(protocol ALTSVC AWS COOKIES DICT DIGEST_AUTH DOH FILE FTP GOPHER HSTS IMAP LDAP LDAPS MQTT NETRC POP3 RTSP SMB SMTP TELNET TFTP WEBSOCKETS)
    target_compile_definitions(curl PRIVATE CURL_DISABLE_${protocol}=1)
  endforeach()
  target_compile_definitions(curl PRIVATE USE_SCHANNEL=1 USE_WINDOWS_SSPI=1 USE_RESOLV_THREADED=1)
  target_link_libraries(curl PUBLIC ws2_32 crypt32 iphlpapi advapi32 secur32 bcrypt)
  return()
endif()
target_include_directories(curl PRIVATE ${CMAKE_SOURCE_DIR}/third_party)

target_link_libraries(curl PRIVATE mbedtls)
