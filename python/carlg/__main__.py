import sys

from carlg.cli import main

sys.exit(main())
