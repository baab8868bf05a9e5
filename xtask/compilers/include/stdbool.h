/* As stdint.h beside it. C++ has the type. */
#pragma once
